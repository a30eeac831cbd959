"""The loss of an update is divided by the tokens of a generation, which covers several updates."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import drawn
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A policy's loss is divided by the tokens of two updates",
    thread="huggingface/trl#6024",
    users_saw="If one generation is used for more or fewer steps than an accumulation window has, the gradients are "
    "halved or quadrupled.",
    cause="The loss is divided by the number of tokens in the whole generated batch, but an update uses only a part of "
    "this batch.",
    fix="The loss is divided by the number of tokens in the micro-batches of the update.",
)

MICRO_BATCHES, UPDATES = 2, 2  # micro-batches per update; updates per generation


def buggy(seed, optimized):
    return make_step(seed, optimized, of_generation=True)


def mended(seed, optimized):
    return make_step(seed, optimized, of_generation=False)


def make_step(seed, optimized, of_generation):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(32, 16), nn.Tanh(), nn.Linear(16, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def summed(tokens, mask):
        losses = functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none")
        return (losses * mask[:, 1:]).sum()

    def step(batch):
        optimizer.zero_grad()
        of_update = batch["mask"][:, 1:].sum()
        count = batch["tokens_of_generation"] if optimized and of_generation else of_update
        parts = MICRO_BATCHES if optimized else 1
        whole = torch.zeros(())
        for tokens, mask in zip(batch["tokens"].chunk(parts), batch["mask"].chunk(parts), strict=True):
            loss = summed(tokens, mask) / count
            loss.backward()
            whole += loss.detach()
        optimizer.step()
        return whole

    def completions(index):
        generator = drawn(seed, index, 20_000)
        start = torch.randint(32, (8, 1), generator=generator)
        lengths = torch.randint(4, 13, (8, 1), generator=generator)
        return (start + 3 * torch.arange(12)) % 32, torch.arange(12) < lengths

    def batch(index):
        first = index - index % UPDATES
        tokens, mask = completions(index)
        count = sum(completions(each)[1][:, 1:].sum() for each in range(first, first + UPDATES))
        return {"tokens": tokens, "mask": mask, "tokens_of_generation": count}

    return StepFunction(step, batch, model)
