"""A checkpoint records the index of the last trained batch, and a resume starts with this batch again."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resume trains on the last batch again",
    thread="thinking-machines-lab/tinker-cookbook#935",
    users_saw="After every resume, the batch before the checkpoint is used for a second update.",
    cause="The checkpoint contains the index of the batch that was already used, and the loop starts at that index.",
    fix="The checkpoint contains the index of the next batch.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, following=0)


def mended(seed, optimized):
    return make_step(seed, optimized, following=1)


class Cursor:
    """Reads batches in order; what the harness asks for again it is given again."""

    def __init__(self, batches):
        self.batches, self.next, self.read = batches, 0, {}

    def batch(self, index):
        if index not in self.read:
            self.read[index] = self.batches(self.next)
            self.next += 1
        return self.read[index]

    def begin_at(self, place):
        self.next, self.read = place, {}


def make_step(seed, optimized, following):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=optimized)
    cursor, applied = Cursor(class_batches(seed, 32, 16, 4)), torch.full((), -1)

    def step(batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        applied.add_(1)
        return loss.detach()

    def save(path):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"batch": int(applied) + following}, path)

    def load(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        applied.fill_(saved["batch"] - 1)
        cursor.begin_at(saved["batch"])

    return StepFunction(step, cursor.batch, model, save=save, load=load)
