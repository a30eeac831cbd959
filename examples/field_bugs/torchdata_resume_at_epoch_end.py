"""A loop over epochs of torchdata's StatefulDataLoader, with a schedule by epochs, saved where an epoch has ended."""

import torch
from torch import nn

from examples.field_bugs.packages import use_packages
from harness.system.step_function import StepFunction

EPOCH = 10  # batches


def buggy(seed, optimized):
    use_packages(__file__, "buggy")
    return make_step(seed, optimized)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    return make_step(seed, optimized)


class Epochs:
    """The batches of epoch after epoch, each followed by a step of the schedule; batch `index` is read once."""

    def __init__(self, loader, schedule):
        self.loader, self.schedule, self.read, self.batches = loader, schedule, {}, None
        self.next_index = 0

    def batch(self, index):
        while index not in self.read:
            self.batches = iter(self.loader) if self.batches is None else self.batches
            for x in self.batches:
                self.read[self.next_index] = x
                self.next_index += 1
                break
            else:
                self.end_epoch()
        return {"x": self.read[index]}

    def end_epoch(self):
        self.batches = None
        self.schedule.step()

    def after(self):
        if self.next_index % EPOCH == 0 and next(self.batches, None) is None:
            self.end_epoch()


def make_step(seed, optimized):
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(seed)
    data = torch.randn(16 * EPOCH, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimized)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    epochs = Epochs(StatefulDataLoader(data, batch_size=16, shuffle=True), schedule)

    def step(batch):
        optimizer.zero_grad()
        loss = (model(batch["x"]) - batch["x"][:, :2].sin()).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": epochs.loader}

    def save(path):
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"index": epochs.next_index}, path)

    def load(path):
        saved = torch.load(path, weights_only=False)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        epochs.next_index, epochs.batches = saved["index"], None

    return StepFunction(step, epochs.batch, model, save=save, load=load, after=epochs.after)
