"""A warm-up gives the optimizer a new learning-rate tensor after each step; the graph keeps reading the first one."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import DEVICE, normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A schedule replaces the tensor that holds the learning rate",
    thread="deepspeedai/DeepSpeed#8202",
    users_saw="Code that keeps a reference to the learning-rate tensor, such as a captured step, reads an old value.",
    cause="The schedule creates a new tensor at each update.",
    fix="The schedule fills the existing tensor in place.",
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
    model = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 3)).to(DEVICE)
    optimizer, done = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-4), fused=True), [0]

    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))

    def after():
        done[0] += 1
        put(optimizer.param_groups[0], min(1e-4 * (1 + done[0]), 1e-2))

    batch = normal_batches(seed, (16, 8), lambda x: x[:, :3].argmax(1))

    return StepFunction(step, batch, model, after=after)
