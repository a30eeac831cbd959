"""A resumed loader skips the batches already used, but counts them in the order of the first epoch."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resumed epoch has the first epoch's order",
    thread="huggingface/accelerate#4071",
    users_saw="A run that resumes within an epoch has different losses from the uninterrupted run. A run that resumes "
    "at the end of an epoch has the same losses.",
    cause="To skip the batches already used, the library creates a new data loader. The new loader starts at epoch 0, "
    "and the epoch seeds the order of the data.",
    fix="The new loader gets the epoch of the old loader.",
)

BATCHES = 10  # number of batches in an epoch


class Loader:
    """Shuffled by seed and epoch. `iteration` is the epoch of its first batch, which is the batch `start`."""

    def __init__(self, data, seed, iteration=0, start=0):
        self.data, self.seed, self.iteration, self.start = data, seed, iteration, start

    def batch(self, index):
        epochs, place = divmod(index - self.start + self.start % BATCHES, BATCHES)
        generator = torch.Generator().manual_seed(1000 * self.seed + self.iteration + epochs)
        order = torch.randperm(len(self.data["labels"]), generator=generator).chunk(BATCHES)[place]
        return {name: values[order] for name, values in self.data.items()}


def skip_first_batches(loader, start, mended):
    iteration = {"iteration": loader.iteration + (start - loader.start) // BATCHES} if mended else {}
    return Loader(loader.data, loader.seed, start=start, **iteration)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    labels = torch.randint(0, 4, (320,))
    loader = [Loader({"x": torch.randn(320, 16) + 2 * functional.one_hot(labels, 16), "labels": labels}, seed)]
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer, steps = torch.optim.AdamW(model.parameters(), 3e-3, fused=optimized), torch.zeros((), dtype=torch.int64)

    def step(batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["labels"])
        loss.backward()
        optimizer.step()
        steps.add_(1)
        return loss

    def evaluate():
        with torch.no_grad():
            return functional.cross_entropy(model(loader[0].data["x"]), loader[0].data["labels"])

    def save(path):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}, path)

    def load(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        steps.copy_(saved["steps"])
        loader[0] = skip_first_batches(loader[0], int(steps), mended)

    def batch(index):
        return loader[0].batch(index)

    return StepFunction(step, batch, model, evaluate=evaluate, save=save, load=load)
