"""A restored average of the weights is lost, because the trainer creates a new average after the restore."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resumed run loses the average of its weights",
    thread="ai2cm/ace#819",
    users_saw="Right after a resume the averaged weights are close to the current weights, as they are at the start of "
    "a run.",
    cause="The trainer restores the average from the checkpoint. It then replaces this average with a new one, whose "
    "update count is 0.",
    fix="The trainer creates the average before it restores the checkpoint.",
)


class Average:
    """An average of the parameters that forgets fast while it has seen few updates."""

    def __init__(self, model):
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates = torch.zeros(())

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = torch.minimum(torch.tensor(0.99), (1 + self.updates) / (10 + self.updates))
        for name, p in model.named_parameters():
            self.values[name].lerp_(p, 1 - decay)


def buggy(seed, optimized):
    return make_step(seed, optimized, built_after=True)


def mended(seed, optimized):
    return make_step(seed, optimized, built_after=False)


class Training:
    def __init__(self, optimized):
        self.model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3, fused=optimized)
        self.average = Average(self.model)

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()
        self.average.update(self.model)
        return loss.detach()


def make_step(seed, optimized, built_after):
    torch.manual_seed(seed)
    training = Training(optimized)
    batch = class_batches(seed, 32, 16, 4)

    @torch.no_grad()
    def evaluate():
        held_out = batch(900)
        logits = torch.func.functional_call(training.model, training.average.values, (held_out["x"],))
        return functional.cross_entropy(logits, held_out["y"])

    def save(path):
        average = {"values": training.average.values, "updates": training.average.updates}
        parts = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        torch.save(parts | {"average": average}, path)

    def load(path):
        saved = torch.load(path)
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
        for name, value in saved["average"]["values"].items():
            training.average.values[name].copy_(value)
        training.average.updates.copy_(saved["average"]["updates"])
        if built_after:
            training.average = Average(training.model)

    return StepFunction(training.step, batch, training.model, evaluate=evaluate, save=save, load=load)
