"""A resumed schedule restores the learning rate, but writes the constructor's weight decay to the optimizer."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import class_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A resumed schedule applies a weight decay before it loads the saved one",
    thread="NVIDIA-NeMo/Automodel#3883",
    users_saw="The first update after a resume uses the weight decay of the command line instead of the checkpoint's.",
    cause="While the schedule is loaded, it first restores its learning-rate fields, then writes learning rate and "
    "weight decay to the optimizer, and only then restores its weight-decay fields.",
    fix="The schedule restores all fields before it writes to the optimizer.",
    missed="A resume with different arguments would find the bug. RESUMES gives both processes the same arguments, "
    "but the bug appears only if the checkpoint and the constructor have different weight decays.",
)


class Schedule:
    """Sets learning rate and weight decay, both by the number of steps."""

    def __init__(self, optimizer, rate, decay):
        self.optimizer, self.rate, self.decay, self.steps = optimizer, rate, decay, 0
        self.step(0)

    def step(self, increment):
        self.steps += increment
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = self.rate * 0.99**self.steps, self.decay * (1 + self.steps / 50)

    def load(self, state, decay_first):
        self.rate, self.steps = state["rate"], 0
        if decay_first:
            self.decay = state["decay"]
        self.step(state["steps"])
        self.decay = state["decay"]


def buggy(seed, optimized):
    return make_step(seed, optimized, decay_first=False)


def mended(seed, optimized):
    return make_step(seed, optimized, decay_first=True)


def make_step(seed, optimized, decay_first):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), fused=optimized)
    schedule = Schedule(optimizer, rate=5e-3, decay=0.1)
    update = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))

    def step(batch):
        loss = update(batch)
        schedule.step(1)
        return loss

    def save(path):
        state = {"rate": schedule.rate, "decay": schedule.decay, "steps": schedule.steps}
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": state}, path)

    def load(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load(saved["schedule"], decay_first)

    return StepFunction(step, class_batches(seed, 32, 16, 4), model, save=save, load=load)
