"""An optimizer's kernel multiplies the weight by the decay factor after it adds the update, not before."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="An optimizer's kernel applies weight decay to the update as well",
    thread="bitsandbytes-foundation/bitsandbytes#2010",
    users_saw="Different backends of one optimizer give slightly different results if the weight decay is not 0.",
    cause="The kernel adds the update to the weight first, and multiplies the weight by the decay factor afterwards.",
    fix="The kernel multiplies the weight first.",
    missed="A bound below 1e-5 would find the bug. With the optimizer's default settings the update has a relative "
    "error of 1e-5, and WITHIN allows a thousandth of the loss and a hundredth of each tensor's movement.",
)

RATE, DECAY = 1e-3, 1e-2  # the default values of the optimizer


def buggy(seed, optimized):
    return make_step(seed, optimized, decays_first=False)


def mended(seed, optimized):
    return make_step(seed, optimized, decays_first=True)


def make_step(seed, optimized, decays_first):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    parameters = list(model.parameters())
    means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    steps = torch.zeros(())

    def step(batch):
        model.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        with torch.no_grad():
            steps.add_(1)
            for p, mean, square in zip(parameters, means, squares, strict=True):
                mean.lerp_(p.grad, 0.1)
                square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                change = RATE * (mean / (1 - 0.9**steps)) / ((square / (1 - 0.999**steps)).sqrt() + 1e-8)
                if decays_first or not optimized:
                    p.mul_(1 - RATE * DECAY).sub_(change)
                else:
                    p.sub_(change).mul_(1 - RATE * DECAY)
        return loss.detach()

    return StepFunction(step, normal_batches(seed, (32, 8), lambda x: x[:, :3].argmax(1)), model)
