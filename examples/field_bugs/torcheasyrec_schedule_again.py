"""A checkpoint contains the model and the optimizer, but not the position of the learning-rate schedule."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import checkpoints, class_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resumed run starts its learning-rate schedule again",
    thread="alibaba/TorchEasyRec#664",
    users_saw="After a resume the learning rate warms up again.",
    cause="Checkpoints do not contain the state of the schedule.",
    fix="Checkpoints contain the state, and the load restores it.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, saves_schedule=False)


def mended(seed, optimized):
    return make_step(seed, optimized, saves_schedule=True)


def make_step(seed, optimized, saves_schedule):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimized)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10) * 0.98**n)
    update = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))

    def step(batch):
        loss = update(batch)
        schedule.step()
        return loss

    parts = {"schedule": schedule} if saves_schedule else {}
    save, load = checkpoints(model=model, optimizer=optimizer, **parts)
    return StepFunction(step, class_batches(seed, 32, 16, 4), model, save=save, load=load)
