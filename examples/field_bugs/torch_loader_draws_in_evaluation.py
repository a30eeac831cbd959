"""A pass over a validation loader draws from the global generator, which changes the dropout of the training."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A pass over a validation loader without shuffling changes the training",
    thread="pytorch/pytorch#11062",
    package="torch==2.13.0",
    users_saw="The order of training examples depended on how often the validation loader was used.",
    cause="Each pass draws a base seed for workers from the global generator, even with `shuffle=False` and without "
    "workers.",
    fix="torch 2.13.0 has no fix. Here the loader has its own generator, as torch's notes on randomness recommend.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, generator=None)


def mended(seed, optimized):
    return make_step(seed, optimized, generator=torch.Generator())


def make_step(seed, optimized, generator):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimized)
    unseen = DataLoader(torch.randn(32, 8), batch_size=16, shuffle=False, generator=generator)

    def error(x):
        return (model(x) - x[:, :2].sin()).square().mean()

    step = update_by(optimizer, lambda batch: error(batch["x"]))

    def batch(index):
        return {"x": torch.randn(16, 8, generator=torch.Generator().manual_seed(100_000 * seed + index))}

    def evaluate():
        model.eval()
        with torch.no_grad():
            losses = [error(x) for x in unseen]
        model.train()
        return torch.stack(losses).mean()

    return StepFunction(step=step, batch=batch, parameters=model, evaluate=evaluate)
