"""The warm-up before a capture runs the real detector, so it changes BatchNorm's running statistics."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill, warm_up
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The warm-up before a capture changes BatchNorm's running statistics",
    thread="LibreYOLO/libreyolo#671",
    users_saw="Training losses were equal to the eager run's, but validation results, averaged weights and "
    "checkpoints were not.",
    cause="The warm-up runs forward passes of the real network, and each pass changes the running statistics.",
    fix="The buffers are copied before the capture, and restored in place after it.",
)


def buggy(seed, captured):
    return make_step(Trainer(seed, captured), seed)


def mended(seed, captured):
    return make_step(RestoringTrainer(seed, captured), seed)


class Trainer:
    def __init__(self, seed, captured):
        torch.manual_seed(seed)
        self.network = nn.Sequential(block(1, 8), block(8, 8), nn.Conv2d(8, 2, 1))  # is it here, and how bright
        self.network.to(DEVICE)
        self.parameters = list(self.network.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=torch.tensor(1e-2), fused=True)
        self.captures, self.static = OwnCaptures(captured), {}

    def passes(self):
        here, bright = self.network(self.static["images"]).unbind(1)
        there = self.static["there"]
        loss = (
            functional.binary_cross_entropy_with_logits(here, there)
            + (there * (bright - self.static["bright"]).abs()).mean()
        )
        for parameter, gradient in zip(self.parameters, torch.autograd.grad(loss, self.parameters), strict=True):
            parameter.grad = gradient
        return loss.detach()

    def capture(self):
        warm_up(self.passes)
        self.captures.capture("step", self.passes, self.static, self.parameters)

    def step(self, batch):
        fill(self.static, batch)
        if self.captures.requested and not self.captures.graphs:
            self.capture()
        self.captures.replays += self.captures.requested
        loss = self.captures.graphs["step"].replay() if self.captures.requested else self.passes()
        self.optimizer.step()
        return loss.clone()


class RestoringTrainer(Trainer):
    def capture(self):
        before = [buffer.clone() for buffer in self.network.buffers()]
        super().capture()
        for buffer, value in zip(self.network.buffers(), before, strict=True):
            buffer.copy_(value)


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU())


def make_step(trainer, seed):
    def batch(index):
        """Images of noise with a square in one of four places."""
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        there = functional.one_hot(torch.randint(4, (8,), generator=generator), 4).view(8, 2, 2).float()
        bright = there * (1 + torch.rand(8, 1, 1, generator=generator))
        images = functional.interpolate(bright[:, None], scale_factor=4) + 0.1 * torch.randn(
            8, 1, 8, 8, generator=generator
        )
        return {"images": images, "there": there, "bright": bright}

    return StepFunction(step=trainer.step, batch=batch, parameters=trainer.network, captured=trainer.captures.record)
