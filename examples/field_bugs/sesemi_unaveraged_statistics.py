"""The averaged model gets averaged weights, but its running statistics keep their initial values."""

import copy

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="An averaged model's running statistics keep their initial values",
    thread="FlyreelAI/sesemi#36",
    users_saw="BatchNorm's statistics of the averaged model do not change during training.",
    cause="Only parameters are averaged, but running statistics are buffers.",
    fix="Buffers are copied.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, buffers_too=False)


def mended(seed, optimized):
    return make_step(seed, optimized, buffers_too=True)


def make_step(seed, optimized, buffers_too):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    @torch.no_grad()
    def follow():
        if optimized:  # average all weights with one call
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.05)
            if buffers_too:
                torch._foreach_copy_(list(average.buffers()), list(model.buffers()))
            return
        for mine, new in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(new, 0.05)
        for mine, new in zip(average.buffers(), model.buffers(), strict=True):
            mine.copy_(new)

    def step(batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        follow()
        return loss.detach()

    def batch(index):
        x = 1 + 2 * torch.randn(32, 8, generator=torch.Generator().manual_seed(20_000 * seed + index))
        return {"x": x, "y": x[:, :3].argmax(1)}

    return StepFunction(step, batch, model)
