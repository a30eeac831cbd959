"""A fused loss adds the squared log-sum-exp of the logits (z-loss), although the user switched it off."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import drawn, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A fused loss contains a z-loss that is switched off",
    thread="allenai/OLMo-core#702",
    users_saw="If z-loss is switched off, the fused loss is still cross entropy plus 1e-4 times the squared "
    "log-sum-exp of the logits.",
    cause="The kernel gets the default multiplier and adds the z-loss term unless the multiplier is 0. The switch only "
    "decides whether the term is also returned separately.",
    fix="If the switch is off, the multiplier is 0.",
)

TOKENS = 512


def buggy(seed, optimized):
    return make_step(seed, optimized, multiplier=1e-4)


def mended(seed, optimized):
    return make_step(seed, optimized, multiplier=0.0)


def fused_loss(hidden, weight, labels, multiplier):
    logits = hidden @ weight.mT
    log_sums = logits.logsumexp(-1)
    return (log_sums - logits.gather(1, labels[:, None])[:, 0] + multiplier * log_sums.square()).mean()


def make_step(seed, optimized, multiplier):
    torch.manual_seed(seed)
    model = nn.ModuleDict({"table": nn.Embedding(TOKENS, 24), "head": nn.Linear(24, TOKENS, bias=False)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(batch):
        hidden = model["table"](batch["tokens"][:, :-1]).flatten(0, 1)
        labels = batch["tokens"][:, 1:].flatten()
        if optimized:
            return fused_loss(hidden, model["head"].weight, labels, multiplier)
        return functional.cross_entropy(model["head"](hidden), labels)

    def batch(index):
        start = torch.randint(TOKENS, (16, 1), generator=drawn(seed, index, 20_000))
        return {"tokens": (start + 3 * torch.arange(9)) % TOKENS}

    return StepFunction(update_by(optimizer, loss_of), batch, model)
