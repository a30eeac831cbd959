"""A sharded optimizer treats each backward pass as the last one of its window, and drops the earlier gradients."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Only the last micro-batch's gradient reaches the update",
    thread="allenai/open-instruct#1498",
    users_saw="With ZeRO-2 and manual accumulation, only the last micro-batch affects an update.",
    cause="The configuration of the sharded optimizer has one accumulation step, so each backward pass counts as the "
    "end of a window. At the end of a window the optimizer hands its accumulated gradients to the update and clears "
    "them.",
    fix="The trainer marks only the last backward pass of a window as the end of the window.",
)

MICRO_BATCHES = 4


class Sharded:
    """Accumulates gradients on its own, and hands them over at a boundary."""

    def __init__(self, parameters):
        self.parameters, self.sums = parameters, None

    def backward(self, loss, boundary):
        grads = torch.autograd.grad(loss, self.parameters)
        self.sums = list(grads) if self.sums is None else [a + b for a, b in zip(self.sums, grads, strict=True)]
        if boundary:
            for p, total in zip(self.parameters, self.sums, strict=True):
                p.grad = total
            self.sums = None


def buggy(seed, optimized):
    return make_step(seed, optimized, is_boundary=lambda _: True)


def mended(seed, optimized):
    return make_step(seed, optimized, is_boundary=lambda number: number == MICRO_BATCHES - 1)


def make_step(seed, optimized, is_boundary):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 3))
    parameters = list(model.parameters())
    optimizer, sharded = torch.optim.AdamW(parameters, lr=2e-3), Sharded(parameters)

    def step(batch):
        optimizer.zero_grad()
        whole = torch.zeros(())
        pieces = zip(batch["x"].chunk(MICRO_BATCHES), batch["y"].chunk(MICRO_BATCHES), strict=True)
        for number, (x, y) in enumerate(pieces):
            loss = functional.cross_entropy(model(x), y) / MICRO_BATCHES
            if optimized:
                sharded.backward(loss, is_boundary(number))
            else:
                loss.backward()
            whole += loss.detach()
        optimizer.step()
        return whole

    return StepFunction(step, normal_batches(seed, (32, 10), lambda x: x[:, :3].argmax(1)), model)
