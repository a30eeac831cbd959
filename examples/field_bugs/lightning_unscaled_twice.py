"""A fused optimizer divides gradients by the loss scale again after the trainer has unscaled them."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A fused optimizer unscales gradients a second time",
    thread="Lightning-AI/pytorch-lightning#15501",
    users_saw="In mixed precision the loss is much worse with a fused Adam than with an unfused Adam.",
    cause="The trainer unscales the gradients before it clips them. The fused optimizer is still given the loss scale, "
    "and divides the gradients by the scale a second time.",
    fix="The optimizer is given the loss scale only if the gradients were not unscaled before (pytorch/pytorch#94060).",
)


class Scaler:
    """A loss scale. An optimizer that can unscale is given the scale, and any other gets unscaled gradients."""

    def __init__(self, looks_at_stage):
        self.scale, self.looks_at_stage, self.unscaled = torch.tensor(1024.0), looks_at_stage, False

    def unscale_(self, optimizer):
        for parameter in optimizer.parameters:
            parameter.grad /= self.scale
        self.unscaled = True

    def step(self, optimizer):
        if optimizer.can_unscale:
            done = self.looks_at_stage and self.unscaled
            optimizer.step(scale=torch.ones(()) if done else self.scale)
        else:
            if not self.unscaled:
                self.unscale_(optimizer)
            optimizer.step()
        self.unscaled = False


class Momentum:
    """Heavy ball. The fused kind divides by the scale in the pass that updates."""

    def __init__(self, parameters, can_unscale):
        self.parameters, self.can_unscale = list(parameters), can_unscale
        self.velocities = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, scale=None):
        for parameter, velocity in zip(self.parameters, self.velocities, strict=True):
            gradient = parameter.grad if scale is None else parameter.grad / scale
            velocity.mul_(0.9).add_(gradient)
            parameter.sub_(0.05 * velocity)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer, scaler = Momentum(model.parameters(), can_unscale=optimized), Scaler(looks_at_stage=mended)

    def step(batch):
        model.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        (loss * scaler.scale).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        return loss

    batch = class_batches(seed, 32, 16, 4)

    return StepFunction(step, batch, model)
