"""An AdamW that can skip a step without a host wait never increases its step count."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="An optimizer that can skip steps without a host sync never counts a step",
    thread="allenai/OLMo-core#317",
    users_saw="Updates are 2.2 times as large as the learning rate implies, and the bias of the moments is not "
    "corrected.",
    cause="The step count is not increased in place, so the increased value is lost and every step counts as the "
    "first.",
    fix="The step count is increased by a tensor that is 1 if the step is made, and 0 if it is skipped.",
)

RATE, BETAS, EPSILON = 2e-3, (0.9, 0.95), 1e-8


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


class Skipping:
    """`factor` is 1, or 0 where the step is to be left out; a tensor, so that the host need not wait for it."""

    def __init__(self, parameters, mended):
        self.parameters, self.mended = list(parameters), mended
        self.first = [torch.zeros_like(each) for each in self.parameters]
        self.second = [torch.zeros_like(each) for each in self.parameters]
        self.count = torch.zeros(())

    @torch.no_grad()
    def step(self, factor):
        count = self.count.add_(factor) if self.mended else self.count + 0 * factor
        corrections = [1 - beta**count if self.mended else torch.ones(()) for beta in BETAS]
        for parameter, first, second in zip(self.parameters, self.first, self.second, strict=True):
            first.lerp_(parameter.grad, (1 - BETAS[0]) * factor)
            second.lerp_(parameter.grad.square(), (1 - BETAS[1]) * factor)
            size = (second / corrections[1]).sqrt() + EPSILON
            parameter.sub_(factor * RATE * (first / corrections[0]) / size)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = Skipping(model.parameters(), mended or not optimized)

    def step(batch):
        model.zero_grad()
        loss = functional.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step((loss.detach() < 1e3).float())
        return loss.detach()

    batch = normal_batches(seed, (16, 8), lambda x: x.sum(dim=1, keepdim=True), apart=1000)

    return StepFunction(step, batch, model)
