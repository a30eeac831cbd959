"""Half-precision gradients are clipped by a factor that is first rounded to half precision and becomes 0."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Clipping erases half-precision gradients",
    thread="unslothai/unsloth-zoo#1261",
    users_saw="If gradients are large, nothing is trained, although half precision can represent the clipped values.",
    cause="The clip factor is rounded to half precision before it multiplies the gradients.",
    fix="Gradients are multiplied in single precision and rounded afterwards.",
)

MOST = 1e-4  # largest norm of the gradients after the clip


def buggy(seed, optimized):
    return make_step(seed, optimized, early=True)


def mended(seed, optimized):
    return make_step(seed, optimized, early=False)


def make_step(seed, optimized, early):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=300.0)

    def clip(halves):
        norm = torch.stack([half.float().norm() for half in halves]).norm()
        factor = (MOST / (norm + 1e-6)).clamp(max=1.0)
        if optimized and early:
            return [half * factor.half() for half in halves]
        return [(half.float() * factor).half() for half in halves]

    def step(batch):
        loss = 3000 * functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
        halves = [grad.half() for grad in torch.autograd.grad(loss, parameters)]
        for p, half in zip(parameters, clip(halves), strict=True):
            p.grad = half.float()
        optimizer.step()
        return loss.detach()

    return StepFunction(step, normal_batches(seed, (32, 8), lambda x: x[:, 0] + x[:, 1].abs()), model)
