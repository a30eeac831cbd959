"""Weight decay and the iteration count also advance in micro-batches that do not update the weights."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Weights decay between updates",
    thread="keras-team/keras#19990",
    users_saw="If a batch is split into three micro-batches, the training differs from the training on the whole "
    "batch: with Adam always, with SGD only if weights decay.",
    cause="Every call applied weight decay and increased the iteration count that Adam uses for bias correction, "
    "including calls that only accumulate gradients.",
    fix="Weight decay and iteration count change only when the weights are updated.",
)


class AdamW:
    """Called after each micro-batch; every so many calls it updates, with the gradients gathered until then."""

    def __init__(self, parameters, every, rests_between):
        self.parameters, self.every, self.rests_between = list(parameters), every, rests_between
        zeros = lambda: [torch.zeros_like(parameter) for parameter in self.parameters]
        self.first, self.second = zeros(), zeros()
        self.iterations, self.calls = torch.zeros(()), 0

    @torch.no_grad()
    def apply(self, rate=0.01, decay=0.1):
        self.calls += 1
        updates = self.calls % self.every == 0
        if updates or not self.rests_between:
            self.iterations += 1
            for parameter in self.parameters:
                parameter.mul_(1 - rate * decay)
        if updates:
            for parameter, first, second in zip(self.parameters, self.first, self.second, strict=True):
                first.lerp_(parameter.grad, 0.1)
                second.lerp_(parameter.grad.square(), 0.001)
                unbiased = (second / (1 - 0.999**self.iterations)).sqrt() + 1e-7
                parameter.sub_(rate * first / (1 - 0.9**self.iterations) / unbiased)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    every = 3 if optimized else 1
    optimizer = AdamW(model.parameters(), every, rests_between=mended)

    def step(batch):
        model.zero_grad()
        total = torch.zeros(())
        for x, y in zip(batch["x"].chunk(every), batch["y"].chunk(every), strict=True):
            loss = functional.cross_entropy(model(x), y) / every
            loss.backward()
            optimizer.apply()
            total = total + loss.detach()
        return total

    batch = class_batches(seed, 48, 16, 4)

    return StepFunction(step, batch, model)
