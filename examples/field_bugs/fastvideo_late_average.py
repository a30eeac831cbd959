"""An average of the weights starts at a later step; a resume restores the average only if it already exists."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resume drops an average that starts late",
    thread="hao-ai-lab/FastVideo#1440",
    users_saw="After a resume the averaged weights silently restart from the current weights.",
    cause="If the average has a start step, the training loop creates it after the checkpoint was loaded. The load "
    "restores an average only if one exists.",
    fix="If the checkpoint has an average, the load creates the average and fills it.",
)

START = 11


class Training:
    def __init__(self, optimized, makes_average):
        self.model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3, fused=optimized)
        self.makes_average, self.average, self.steps = makes_average, None, 0

    def copies(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps >= START:
            self.average = self.average or self.copies()
            with torch.no_grad():
                torch._foreach_lerp_(self.average, list(self.model.parameters()), 0.02)
        return loss.detach()

    def save(self, path):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "steps": self.steps}
        torch.save(state | ({} if self.average is None else {"average": self.average}), path)

    def load(self, path):
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.steps = saved["steps"]
        if self.makes_average and "average" in saved:
            self.average = self.average or self.copies()
        if self.average is not None:
            torch._foreach_copy_(self.average, saved["average"])


def buggy(seed, optimized):
    return make_step(seed, optimized, makes_average=False)


def mended(seed, optimized):
    return make_step(seed, optimized, makes_average=True)


def make_step(seed, optimized, makes_average):
    torch.manual_seed(seed)
    training = Training(optimized, makes_average)
    batch = class_batches(seed, 32, 16, 4)
    return StepFunction(training.step, batch, training.model, save=training.save, load=training.load)
