"""Adapters are added to bfloat16 weights for a rollout and subtracted again, which changes the weights by rounding."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Merging and unmerging adapters changes the frozen weights",
    thread="huggingface/trl#6688",
    users_saw="If adapters are bfloat16 and rollouts use the merged model, the base weights drift by 1.5e-2 in 1,000 "
    "cycles.",
    cause="Merging adds the adapter to the weights, and unmerging subtracts it. Both operations round to bfloat16, and "
    "the rounding errors add up.",
    fix="A copy of the weights from before the merge is kept and restored.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, kept=False)


def mended(seed, optimized):
    return make_step(seed, optimized, kept=True)


class Adapted(nn.Module):
    def __init__(self, width, rank=2):
        super().__init__()
        self.base = nn.Parameter((torch.randn(width, width) / width**0.5).bfloat16(), requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(rank, width) / 4), nn.Parameter(torch.zeros(width, rank))
        self.merged = False

    def delta(self):
        return (2 * self.up @ self.down).to(self.base.dtype)

    def forward(self, x):
        y = x @ self.base.float().T
        return y if self.merged else y + 2 * x @ self.down.T @ self.up.T


def make_step(seed, optimized, kept):
    torch.manual_seed(seed)
    layer, head = Adapted(16), nn.Linear(16, 4)
    model = nn.Sequential(layer, nn.Tanh(), head)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))

    batch = normal_batches(seed, (32, 16), lambda x: x[:, 3:7].argmax(1))

    @torch.no_grad()
    def evaluate():
        rollout, before = batch(19_999), layer.base.clone()
        if optimized:
            layer.base += layer.delta()
            layer.merged = True
        loss = functional.cross_entropy(model(rollout["x"]), rollout["y"]).item()
        if optimized:
            layer.merged = False
            layer.base.copy_(before) if kept else layer.base.sub_(layer.delta())
        return loss

    return StepFunction(step, batch, model, evaluate=evaluate)
