"""Fabric's wrapper does not see what a load changes in the optimizer, so a schedule on the wrapper has no effect."""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.packages import use_packages
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The wrapper of an optimizer is out of date after a checkpoint is loaded",
    thread="Lightning-AI/pytorch-lightning#18482",
    package="pytorch-lightning==2.0.7",
    installed={
        "buggy": ["pytorch-lightning==2.0.7", "setuptools==75.8.0"],
        "mended": ["pytorch-lightning==2.0.9", "setuptools==75.8.0"],
    },
    users_saw="After a load the optimizer that Fabric returned had an empty state, and a schedule on this optimizer "
    "had no effect.",
    cause="Fabric's wrapper copies the optimizer's `__dict__` once. `load_state_dict` later gives the optimizer new "
    "groups and state, which the wrapper does not have.",
    fix="The wrapper copies the optimizer's attributes again after each load.",
)


def buggy(seed, optimized):
    use_packages(__file__, "buggy")
    return make_step(seed, optimized)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    return make_step(seed, optimized)


def make_step(seed, optimized):
    from lightning_fabric import Fabric

    torch.manual_seed(seed)
    fabric = Fabric(accelerator="cpu", devices=1)
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-2, fused=optimized))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)

    def step(batch):
        optimizer.zero_grad()
        loss = (model(batch["x"]) - batch["y"]).square().mean()
        fabric.backward(loss)
        optimizer.step()
        return loss.detach()

    batch = normal_batches(seed, (16, 8), lambda x: x[:, :2].sin(), apart=100_000)

    def save(path):
        fabric.save(path, {"model": model, "optimizer": optimizer, "schedule": schedule.state_dict()})

    def load(path):
        rest = fabric.load(path, {"model": model, "optimizer": optimizer})
        schedule.load_state_dict(rest["schedule"])

    return StepFunction(step=step, batch=batch, parameters=network, save=save, load=load, after=schedule.step)
