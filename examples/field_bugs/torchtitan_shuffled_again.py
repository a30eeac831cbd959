"""Each epoch shuffles the order of the epoch before, but a resume shuffles the original order once."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resumed epoch is shuffled from the original order",
    thread="pytorch/torchtitan#2864",
    users_saw="If a run resumes in the second epoch or later, the order of the data differs from the order in the "
    "uninterrupted run.",
    cause="During training each epoch shuffles the order of the epoch before. After a load the original order is "
    "shuffled instead.",
    fix="Each epoch shuffles the original order.",
)

BATCHES, SIZE = 7, 16  # number of batches in an epoch; number of rows in a batch


class Shuffled:
    """Batches of rows by an index that goes through epochs. `loaded`: the epoch that a checkpoint was loaded in."""

    def __init__(self, seed, cumulative):
        self.seed, self.cumulative, self.loaded = seed, cumulative, 0

    def order(self, epoch):
        rows = torch.arange(BATCHES * SIZE)
        for each in range(self.loaded, epoch + 1) if self.cumulative else [epoch]:
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1000 * self.seed + each))]
        return rows

    def rows(self, index):
        epoch, place = divmod(index, BATCHES)
        return self.order(epoch)[place * SIZE : (place + 1) * SIZE]


def buggy(seed, optimized):
    return make_step(seed, optimized, cumulative=True)


def mended(seed, optimized):
    return make_step(seed, optimized, cumulative=False)


def make_step(seed, optimized, cumulative):
    torch.manual_seed(seed)
    y = torch.randint(0, 4, (BATCHES * SIZE,))
    x = torch.randn(BATCHES * SIZE, 16) + 2 * functional.one_hot(y, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=optimized)
    data, steps = Shuffled(seed, cumulative), torch.zeros((), dtype=torch.int64)
    update = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))

    def step(batch):
        loss = update(batch)
        steps.add_(1)
        return loss

    def batch(index):
        rows = data.rows(index)
        return {"x": x[rows], "y": y[rows]}

    def save(path):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}, path)

    def load(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        steps.copy_(saved["steps"])
        data.loaded = int(steps) // BATCHES

    return StepFunction(step, batch, model, save=save, load=load)
