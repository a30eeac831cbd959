"""A captured backward pass overwrites most gradients, but adds to the gradient of a tensor that is used twice."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill
from examples.field_bugs.small_training import DEVICE, class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Gradients of a tensor that is used twice grow from step to step",
    thread="ooples/AiDotNet.Tensors#760",
    users_saw="Weights grow without bound while the loss hardly changes.",
    cause="The compiled plan does not clear gradients between steps, because most backward operations overwrite the "
    "gradient. But if several operations use a tensor, their gradients are added up, so the sum also contains the "
    "gradient of the step before.",
    fix="The plan clears the gradient of each tensor that several operations use.",
)


class Residual(nn.Module):
    """One bias is added at two places; all other parameters are used once."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.last, self.shared = nn.Linear(16, 4, bias=False), nn.Parameter(torch.zeros(16))

    def forward(self, x):
        hidden = torch.tanh(self.first(x) + self.shared)
        return self.last(x - torch.tanh(self.second(hidden) + self.shared))


def buggy(seed, captured):
    return make_step(seed, captured, clears_all=False)


def mended(seed, captured):
    return make_step(seed, captured, clears_all=True)


def make_step(seed, captured, clears_all):
    torch.manual_seed(seed)
    model = Residual().to(DEVICE)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captures, static = OwnCaptures(captured), {}

    def update():
        for p in model.parameters():
            if clears_all or not captured or p is not model.shared:
                p.grad.zero_()
        loss = functional.cross_entropy(model(static["x"]), static["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    def step(batch):
        fill(static, batch)
        if not captured:
            return update()
        if not captures.graphs:
            captures.capture("step", update, static, model.parameters())
        captures.replays += 1
        return captures.graphs["step"].replay().clone()

    return StepFunction(step, class_batches(seed, 16, 16, 4), model, captured=captures.record)
