"""A step with zero gradients creates the optimizer's state, and the optimizer counts this step."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches, update_by
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The step that creates an optimizer's state counts as the first step",
    thread="pytorch/torchtitan#4382",
    users_saw="Under fault-tolerant training the first update differs from the first update of the same optimizer "
    "without the wrapper.",
    cause="To create the optimizer's state, the wrapper makes a step with zero gradients and a learning rate of 0. "
    "Adam's step count is then 1, so the first real update has the bias corrections of the second.",
    fix="The step count and the moments are reset to 0 afterwards.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, sets_back=False)


def mended(seed, optimized):
    return make_step(seed, optimized, sets_back=True)


def make_state(optimizer, sets_back):
    [group] = optimizer.param_groups
    for p in group["params"]:
        p.grad = torch.zeros_like(p)
    rate, group["lr"] = group["lr"], 0.0
    optimizer.step()
    group["lr"] = rate
    optimizer.zero_grad()
    for state in optimizer.state.values() if sets_back else ():
        for tensor in state.values():
            tensor.zero_()


def make_step(seed, optimized, sets_back):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    if optimized:
        make_state(optimizer, sets_back)
    step = update_by(optimizer, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"]))
    return StepFunction(step, normal_batches(seed, (32, 8), lambda x: x[:, :3].argmax(1)), model)
