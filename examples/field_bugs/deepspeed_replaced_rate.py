"""A warm-up gives the optimizer a new tensor as its learning rate after each step; the graph holds the first one."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A schedule replaces the tensor that holds the learning rate",
    thread="deepspeedai/DeepSpeed#8202",
    users_saw="Whoever holds the tensor that was given as the rate, a captured step among them, keeps the stale value.",
    cause="The schedule makes a new tensor at each update.",
    fix="The tensor is filled in place.",
)


def replace(group, rate):
    group["lr"] = torch.tensor(rate)


def fill(group, rate):
    group["lr"].fill_(rate)


def buggy(seed):
    return make_step(seed, replace)


def mended(seed):
    return make_step(seed, fill)


def make_step(seed, put):
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 3)).to(device)
    optimizer, done = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-4), fused=True), [0]

    def step(batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    def after():
        done[0] += 1
        put(optimizer.param_groups[0], min(1e-4 * (1 + done[0]), 1e-2))

    def batch(index):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(20_000 * seed + index))
        return {"x": x, "y": x[:, :3].argmax(1)}

    return StepFunction(step, batch, model, after=after)
