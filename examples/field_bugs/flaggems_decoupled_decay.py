"""A fused Adam applies weight decay to the update, as AdamW does."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A fused Adam applies weight decay like AdamW",
    thread="flagos-ai/FlagGems#4988",
    users_saw="Parameters and moments are wrong if the weight decay is not 0.",
    cause="The kernel applies the decay to the update. Adam adds the decay to the gradient, before the moments.",
    fix="The kernel adds the decay to the gradient.",
)

RATE, DECAY, BETAS = 3e-3, 0.05, (0.9, 0.999)


def buggy(seed, optimized):
    return make_step(seed, optimized, decoupled=True)


def mended(seed, optimized):
    return make_step(seed, optimized, decoupled=False)


class FusedAdam:
    """All parameters in one flat update."""

    def __init__(self, parameters, decoupled):
        self.parameters, self.decoupled = list(parameters), decoupled
        size = sum(p.numel() for p in self.parameters)
        self.mean, self.square, self.steps = torch.zeros(size), torch.zeros(size), torch.zeros(())

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.steps += 1
        weight = torch.cat([p.flatten() for p in self.parameters])
        grad = torch.cat([p.grad.flatten() for p in self.parameters])
        if not self.decoupled:
            grad = grad + DECAY * weight
        self.mean.lerp_(grad, 1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        bias, bias_of_square = 1 - BETAS[0] ** self.steps, 1 - BETAS[1] ** self.steps
        change = RATE * (self.mean / bias) / ((self.square / bias_of_square).sqrt() + 1e-8)
        if self.decoupled:
            change = change + RATE * DECAY * weight
        for p, piece in zip(self.parameters, change.split([p.numel() for p in self.parameters]), strict=True):
            p.sub_(piece.view_as(p))


def make_step(seed, optimized, decoupled):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    plain = lambda: torch.optim.Adam(model.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY)
    optimizer = FusedAdam(model.parameters(), decoupled) if optimized else plain()
    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))
    return StepFunction(step, normal_batches(seed, (32, 8), lambda x: x[:, :3].argmax(1)), model)
