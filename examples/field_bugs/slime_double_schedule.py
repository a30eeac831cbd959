"""A resume advances the learning-rate schedule twice: it loads the state, and then repeats the number of steps."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resumed schedule is at twice its step",
    thread="THUDM/slime#1547",
    users_saw="After a resume the learning rate is that of a run with twice as many steps.",
    cause="Loading the schedule's state already sets the schedule to the saved step. The trainer then advances the "
    "schedule by the same number of steps again.",
    fix="The trainer does not advance the schedule after the load.",
)


class Schedule:
    """Sets the optimizer's learning rate by the number of steps."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0
        self.step(0)

    def step(self, increment):
        self.steps += increment
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-2 * 0.97**self.steps

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = 0
        self.step(state["steps"])


def buggy(seed, optimized):
    return make_step(seed, optimized, moves_on=True)


def mended(seed, optimized):
    return make_step(seed, optimized, moves_on=False)


def make_step(seed, optimized, moves_on):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimized)
    schedule = Schedule(optimizer)
    update = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}

    def step(batch):
        loss = update(batch)
        schedule.step(1)
        return loss

    save = lambda path: torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(path):
        saved = torch.load(path)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        if moves_on:
            schedule.step(saved["schedule"]["steps"])

    return StepFunction(step, class_batches(seed, 32, 16, 4), model, save=save, load=load)
