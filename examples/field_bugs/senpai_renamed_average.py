"""An average finds weights by name, but the parameters of a compiled model have different names."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The averaged weights of a compiled model are never updated",
    thread="wandb/senpai#2899",
    users_saw="Under torch.compile the validation loss, which uses the averaged weights, does not change while the "
    "training loss falls.",
    cause="torch.compile adds a prefix to the names of the parameters. The average finds weights by name, and ignores "
    "names that it does not know.",
    fix="The average removes the prefix from the names.",
)

PREFIX = "_orig_mod."


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


class Compiled(nn.Module):
    """Names what it wraps as torch's OptimizedModule does, and computes the same."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model

    def forward(self, x):
        return self._orig_mod(x)


class Average:
    def __init__(self, model, mended):
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.mended = mended

    def update(self, model):
        for name, parameter in model.named_parameters():
            known = name.removeprefix(PREFIX) if self.mended else name
            if known in self.shadow:
                self.shadow[known].lerp_(parameter.detach(), 0.1)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    plain = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    average = Average(plain, mended)
    model = Compiled(plain) if optimized else plain
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        average.update(model)
        return loss.detach()

    batch = normal_batches(seed, (16, 8), lambda x: x.sum(dim=1, keepdim=True), apart=1000)

    return StepFunction(step, batch, plain)
