"""A fused optimizer assigns the decayed weight to a local variable that nothing reads."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="An optimizer's weight decay has no effect",
    thread="tinygrad/tinygrad#17708",
    users_saw="Muon and LARS train the same with and without weight decay.",
    cause="The inner step used to return the new weight, and was changed to return the change of the weight. The "
    "decayed weight is assigned to a local variable that nothing reads any more.",
    fix="The returned change includes the weight decay.",
)

RATE, DECAY = 0.02, 0.1


def buggy(seed, optimized):
    return make_step(seed, optimized, decays=False)


def mended(seed, optimized):
    return make_step(seed, optimized, decays=True)


def orthogonal(matrix):
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


def change_of(weight, momentum, decays):
    change = RATE * orthogonal(momentum)
    return change + RATE * DECAY * weight if decays else change


def make_step(seed, optimized, decays):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 24, bias=False), nn.Tanh(), nn.Linear(24, 3, bias=False))
    weights = list(model.parameters())
    momenta = [torch.zeros_like(weight) for weight in weights]

    def step(batch):
        model.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        with torch.no_grad():
            for weight, momentum in zip(weights, momenta, strict=True):
                momentum.mul_(0.95).add_(weight.grad)
                if optimized:
                    weight.sub_(change_of(weight, momentum, decays))
                else:
                    weight.mul_(1 - RATE * DECAY).sub_(RATE * orthogonal(momentum))
        return loss.detach()

    return StepFunction(step, normal_batches(seed, (32, 12), lambda x: x[:, :3].argmax(1)), model)
