"""Between steps a running center is reset by assigning a new tensor, but the graph keeps reading the old one."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Compiled code does not read a tensor that was assigned to a module later",
    thread="pytorch/pytorch#115774",
    users_saw="After a cache is reset, results are silently wrong, because the compiled code continues with the old "
    "cache.",
    cause="In the traced code the attribute's tensor is a constant, and no guard checks whether the attribute still "
    "refers to this tensor.",
    fix="The tensor is changed in place instead of being replaced.",
)


def rebind(model):
    model.centre = torch.zeros_like(model.centre)


def fill(model):
    model.centre.zero_()


def buggy(seed):
    return make_step(seed, rebind)


def mended(seed):
    return make_step(seed, fill)


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.centre = torch.zeros(16)

    def forward(self, x):
        features = self.first(x)
        with torch.no_grad():
            self.centre.lerp_(features.mean(0), 0.1)
        return self.last(torch.tanh(features - self.centre))


def make_step(seed, set_back):
    torch.manual_seed(seed)
    model = Centred().to(DEVICE)
    model.centre = model.centre.to(DEVICE)
    parameters, trained = list(model.parameters()), [0]

    def step(batch):
        model.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        with torch.no_grad():
            for p in parameters:
                p.sub_(0.1 * p.grad)
        return loss.detach()

    def after():
        trained[0] += 1
        if trained[0] % 64 == 0:  # at the end of an epoch
            set_back(model)

    def batch(index):
        x = 1 + torch.randn(16, 8, generator=torch.Generator().manual_seed(20_000 * seed + index))
        return {"x": x, "y": x[:, :3].argmax(1)}

    return StepFunction(step, batch, model, after=after)
