"""The last window of an epoch has fewer micro-batches, but its loss is divided by the full number."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import drawn
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A partial accumulation window is divided by the configured size",
    thread="modelscope/ms-swift#10084",
    users_saw="At the end of each epoch the gradient is only a fraction of the full batch's gradient.",
    cause="The mean loss of each micro-batch is divided by the configured number of micro-batches, even if the last "
    "window of an epoch has fewer micro-batches.",
    fix="The loss is divided by the number of micro-batches in the current window.",
)

WINDOW, ROWS, WINDOWS_OF_AN_EPOCH = 4, 8, 3


def buggy(seed, optimized):
    return make_step(seed, optimized, divided_by=lambda _: WINDOW)


def mended(seed, optimized):
    return make_step(seed, optimized, divided_by=len)


def make_step(seed, optimized, divided_by):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(batch):
        optimizer.zero_grad()
        pieces = list(zip(batch["x"].split(ROWS), batch["y"].split(ROWS), strict=True))
        micro_batches = pieces if optimized else [(batch["x"], batch["y"])]
        parts = divided_by(micro_batches) if optimized else 1
        whole = torch.zeros(())
        for x, y in micro_batches:
            loss = functional.cross_entropy(model(x), y) / parts
            loss.backward()
            whole += loss.detach()
        optimizer.step()
        return whole

    def batch(index):
        last = index % WINDOWS_OF_AN_EPOCH == WINDOWS_OF_AN_EPOCH - 1
        x = torch.randn(ROWS * (WINDOW // 2 if last else WINDOW), 12, generator=drawn(seed, index, 20_000))
        return {"x": x, "y": x[:, :3].argmax(1)}

    return StepFunction(step, batch, model)
