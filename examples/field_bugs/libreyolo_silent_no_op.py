"""A family of detectors overrides the training step with a copy, which never uses the library's captured step."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill, warm_up
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A requested CUDA graph is silently not used",
    thread="LibreYOLO/libreyolo#716",
    users_saw="With `cuda_graph=True` five families of detectors trained without a CUDA graph. There was no error, no "
    "warning and no speed-up.",
    cause="The trainers of these detectors override the training step with a copy of the library's step, and the copy "
    "calls the eager forward and backward passes directly.",
    fix="The copy calls the function that chooses between a replay and the eager passes.",
)


def buggy(seed, captured):
    return make_step(AveragingTrainer(seed, captured), seed)


def mended(seed, captured):
    return make_step(RoutedAveragingTrainer(seed, captured), seed)


class Trainer:
    """The library's: a step by a replay where one is asked for."""

    def __init__(self, seed, captured):
        torch.manual_seed(seed)
        self.model = Detector().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=torch.tensor(3e-3), fused=True)
        self.captures, self.static = OwnCaptures(captured), {}

    def step(self, batch):
        self.fill(batch)
        loss = self.passes()
        self.optimizer.step()
        return loss.clone()

    def fill(self, batch):
        fill(self.static, batch)

    def passes(self):
        if not self.captures.requested:
            return self.eager_passes()
        if not self.captures.graphs:
            warm_up(self.eager_passes)
            self.captures.capture("step", self.eager_passes, self.static, self.model.parameters())
        self.captures.replays += 1
        return self.captures.graphs["step"].replay()

    def eager_passes(self):
        self.optimizer.zero_grad()
        loss = functional.l1_loss(self.model(self.static["images"]), self.static["boxes"])
        loss.backward()
        return loss.detach()


class AveragingTrainer(Trainer):
    """The family's: its step keeps an average of the weights, too."""

    own_passes = Trainer.eager_passes

    def __init__(self, seed, captured):
        super().__init__(seed, captured)
        self.average = [each.detach().clone() for each in self.model.parameters()]

    def step(self, batch):
        self.fill(batch)
        loss = self.own_passes()
        self.optimizer.step()
        torch._foreach_lerp_(self.average, [each.detach() for each in self.model.parameters()], 0.01)
        return loss.clone()


class RoutedAveragingTrainer(AveragingTrainer):
    own_passes = Trainer.passes


class Detector(nn.Module):
    """Four queries look at the patches of an image, and give a box each."""

    def __init__(self, width=16):
        super().__init__()
        self.patches, self.places = nn.Conv2d(1, width, 4, 4), nn.Parameter(torch.randn(16, width))
        self.queries, self.keys = nn.Parameter(torch.randn(4, width)), nn.Linear(width, width)
        self.box = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4))

    def forward(self, images):
        seen = self.patches(images).flatten(2).mT + self.places
        return self.box((self.queries @ self.keys(seen).mT).softmax(-1) @ seen)


def make_step(trainer, seed):
    def batch(index):
        """A box is how bright the squares of an image's quarter are."""
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        squares = torch.rand(8, 1, 4, 4, generator=generator)
        images = functional.interpolate(squares, scale_factor=4) + 0.1 * torch.randn(8, 1, 16, 16, generator=generator)
        return {"images": images, "boxes": functional.unfold(squares, 2, stride=2).mT.contiguous()}

    return StepFunction(step=trainer.step, batch=batch, parameters=trainer.model, captured=trainer.captures.record)
