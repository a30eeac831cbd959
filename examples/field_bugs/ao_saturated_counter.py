"""The step count of a compact optimizer is a bfloat16 tensor, which cannot count beyond 256."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="An optimizer's step count stops at 256",
    thread="pytorch/ao#4915",
    users_saw="If torch's default data type is bfloat16, every update after step 256 is too small, without an error.",
    cause="The step count has the default data type. bfloat16 cannot represent 257, so the count stays at 256, and the "
    "bias corrections keep their values of step 256.",
    fix="The step count is float32.",
    missed="WITHIN over 600 steps would find the bug, first at step 273. The optimized step's template runs 43 steps, "
    "and only the captured step's template has a long run.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, torch.bfloat16)


def mended(seed, optimized):
    return make_step(seed, optimized, torch.float32)


class Compact:
    """Adam over one list of tensors, with one count for all."""

    def __init__(self, parameters, count_type):
        self.parameters = list(parameters)
        self.count = torch.zeros((), dtype=count_type)
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self):
        self.count += 1
        count = self.count.float()
        for p, mean, square in zip(self.parameters, self.mean, self.square, strict=True):
            mean.lerp_(p.grad, 0.1)
            square.lerp_(p.grad**2, 0.001)
            denominator = (square / (1 - 0.999**count)).sqrt_().add_(1e-8)
            p.sub_(1e-3 / (1 - 0.9**count) * mean / denominator)


def make_step(seed, optimized, count_type):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = Compact(model.parameters(), count_type) if optimized else torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(batch):
        model.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = normal_batches(seed, (32, 8), lambda x: x[:, :4].argmax(1))

    return StepFunction(step, batch, model)
