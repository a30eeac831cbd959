"""A resume loads the optimizer's state before the optimizer exists, so the state is ignored."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The optimizer's state is loaded before the optimizer exists",
    thread="LibreYOLO/libreyolo#277",
    users_saw="Each resume starts with an empty optimizer state, and the first epoch after the resume has a different "
    "learning rate.",
    cause="`resume()` loads the optimizer's state only if the optimizer exists, but `train()` creates the optimizer "
    "later.",
    fix="`resume()` keeps the state, and the optimizer loads it when it is created.",
    changed="The harness: if an optimizer holds a loaded tensor, the tensor is compared under its name in the "
    "optimizer. Before, the tensor's name in the trainer was compared too, and counted as an additional tensor of the "
    "resumed run.",
)


class Trainer:
    def __init__(self, optimized, keeps_state):
        self.model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        self.optimizer, self.resumed, self.optimized, self.keeps_state = None, None, optimized, keeps_state

    def set_up(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, fused=self.optimized)
        if self.resumed is not None:
            self.optimizer.load_state_dict(self.resumed)

    def step(self, batch):
        if self.optimizer is None:
            self.set_up()
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)

    def resume(self, path):
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(saved["optimizer"])
        elif self.keeps_state:
            self.resumed = saved["optimizer"]


def buggy(seed, optimized):
    return make_step(seed, optimized, keeps_state=False)


def mended(seed, optimized):
    return make_step(seed, optimized, keeps_state=True)


def make_step(seed, optimized, keeps_state):
    torch.manual_seed(seed)
    trainer = Trainer(optimized, keeps_state)
    batch = class_batches(seed, 32, 16, 4)
    return StepFunction(trainer.step, batch, trainer.model, save=trainer.save, load=trainer.resume)
