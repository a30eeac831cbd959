"""A schedule by epochs of torchdata's StatefulDataLoader: a load where an epoch has ended gives an empty epoch."""

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
    """What a loop over epochs and their batches does; `index` is the next batch, which is read once."""

    def __init__(self, loader, schedule):
        self.loader, self.schedule, self.index, self.batches, self.held = loader, schedule, 0, None, None

    def batch(self, index):
        if self.held is None or self.held[0] != index:
            self.batches = self.batches or iter(self.loader)
            x = next(self.batches, None)
            if x is None:  # the epoch was empty
                self.end_epoch()
                return self.batch(index)
            self.held, self.index = (index, {"x": x}), self.index + 1
        return self.held[1]

    def end_epoch(self):
        self.batches = None
        self.schedule.step()

    def after(self):
        if self.index % EPOCH == 0 and next(self.batches, None) is None:
            self.end_epoch()


def make_step(seed, optimized):
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(seed)
    data = torch.randn(16 * EPOCH, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimized)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    epochs = Epochs(StatefulDataLoader(data, batch_size=16, shuffle=True), schedule)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": epochs.loader}

    def step(batch):
        optimizer.zero_grad()
        loss = (model(batch["x"]) - batch["x"][:, :2].sin()).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def save(path):
        saved = {name: part.state_dict() for name, part in parts.items()}
        torch.save(saved | {"index": epochs.index, "generator": torch.get_rng_state()}, path)

    def load(path):
        saved = torch.load(path, weights_only=False)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        epochs.index, epochs.held, epochs.batches = saved["index"], None, iter(epochs.loader)
        torch.set_rng_state(saved["generator"])

    return StepFunction(step, epochs.batch, model, save=save, load=load, after=epochs.after)
