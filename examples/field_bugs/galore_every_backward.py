"""Each parameter has an optimizer that updates in every backward pass, even during gradient accumulation."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Optimizers of single layers update in every backward pass",
    thread="jiaweizzhao/GaLore#78",
    users_saw="With gradient accumulation, one logical update becomes one update for each micro-batch.",
    cause="Each parameter has a hook that updates the parameter, clears its gradient and advances the schedule in "
    "every backward pass, even if the accumulation is not complete.",
    fix="The hook waits for the last micro-batch.",
)

MICRO_BATCHES = 4


def buggy(seed, optimized):
    return make_step(seed, optimized, knows=False)


def mended(seed, optimized):
    return make_step(seed, optimized, knows=True)


def make_step(seed, optimized, knows):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4))
    together = torch.optim.AdamW(model.parameters(), lr=1e-3)
    each = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}
    last = [False]

    def update(parameter):
        if last[0] or not knows:
            each[parameter].step()
            each[parameter].zero_grad()

    if optimized:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)

    def step(batch):
        if not optimized:
            together.zero_grad()
        total = torch.zeros(())
        pairs = zip(batch["x"].chunk(MICRO_BATCHES), batch["y"].chunk(MICRO_BATCHES), strict=True)
        for number, (x, y) in enumerate(pairs, 1):
            last[0] = number == MICRO_BATCHES
            loss = functional.cross_entropy(model(x), y) / MICRO_BATCHES
            loss.backward()
            total = total + loss.detach()
        if not optimized:
            together.step()
        return total

    batch = normal_batches(seed, (32, 12), lambda x: x[:, 1:5].argmax(1))

    return StepFunction(step, batch, model)
