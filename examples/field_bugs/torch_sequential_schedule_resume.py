"""Schedules that are created after the optimizer was restored reset its learning rate."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A schedule that is created after the optimizer was restored resets the learning rate",
    thread="pytorch/pytorch#119168",
    package="torch==2.13.0",
    users_saw="After a load the learning rate was that of the first warm-up step, although the schedule's state was "
    "right.",
    cause="When a scheduler is created, it writes its first learning rate into the optimizer. The scheduler's "
    "`load_state_dict` does not write the learning rate, so the wrong value stays.",
    fix="torch 2.13.0 has no fix. Its documentation gives the right order: create the schedulers first, and then "
    "restore the optimizer.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, schedule_first=False)


def mended(seed, optimized):
    return make_step(seed, optimized, schedule_first=True)


class Training:
    """Optimizer and schedule of a model."""

    def __init__(self, model, optimized):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimized)

    def make_schedule(self):
        parts = [LinearLR(self.optimizer, 0.1, 1.0, 10), CosineAnnealingLR(self.optimizer, 30)]
        self.schedule = SequentialLR(self.optimizer, parts, milestones=[10])

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = (self.model(batch["x"]) - batch["y"]).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def after(self):
        self.schedule.step()


def make_step(seed, optimized, schedule_first):
    torch.manual_seed(seed)
    training = Training(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)), optimized)
    training.make_schedule()

    batch = normal_batches(seed, (16, 8), lambda x: x[:, :2].sin(), apart=100_000)

    def save(path):
        torch.save([each.state_dict() for each in (training.model, training.optimizer, training.schedule)], path)

    def load(path):
        model, optimizer, schedule = torch.load(path)
        training.model.load_state_dict(model)
        if schedule_first:
            training.make_schedule()
        training.optimizer.load_state_dict(optimizer)
        if not schedule_first:
            training.make_schedule()
        training.schedule.load_state_dict(schedule)

    return StepFunction(training.step, batch, training.model, save=save, load=load, after=training.after)
