"""A physics-informed network for a damped motion, whose weights of losses stay as they were at the capture.

How it came about: the trainer captures a step and replays it from then on. It hands the number of the step to the
weighting of its losses as an `int`, which the graph holds as it was. (There the 20 steps before were made plainly.)
"""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Weights of losses stay as they were at the captured step",
    thread="NVIDIA/physicsnemo-sym#279",
    users_saw="With CUDA graphs the weights of an aggregator that follow the number of the step never change again "
    "after step 20.",
    cause="The trainer hands the number of the step to losses and aggregator as an `int`; captured after 20 plain "
    "steps, it is a constant of the graph.",
    fix="The number is a tensor that is filled in place before each replay (NVIDIA/physicsnemo-sym#280).",
    changed="The entry: it captures at its first step; before, 20 plain steps came first, for which CAPTURES has no "
    "word.",
    trouble="At the first try the entry made its first 20 steps plainly, as the trainer does, and CAPTURES failed for "
    "the fixed form, too: `uncaptured_steps`. Steps that train before the capture are no fault, and the kind has no "
    "word for them. Since then the entry captures at its first step.",
)


def make_step(seed, captured, number_of):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    on_device = torch.zeros((), dtype=torch.int64, device=DEVICE)
    captures, static = OwnCaptures(captured), {}

    def weighted(losses, number):
        settled = torch.sigmoid(0.1 * (torch.as_tensor(number, device=DEVICE) - 40))
        return losses["start"] + losses["seen"] + settled * losses["equation"]

    def update(number):
        time = static["time"].detach().requires_grad_()
        place = net(time)
        [speed] = torch.autograd.grad(place.sum(), time, create_graph=True)
        losses = {
            "equation": (speed + place).square().mean(),
            "start": (net(static["time"] * 0) - 1).square().mean(),
            "seen": (net(static["seen"]) - torch.exp(-static["seen"])).square().mean(),
        }
        optimizer.zero_grad()
        loss = weighted(losses, number)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def step(batch):
        fill(static, batch)
        made = captures.uncaptured + captures.replays
        number = number_of(made, on_device)
        if not captured:
            captures.uncaptured += 1
            return update(number)
        if not captures.graphs:
            captures.capture("all", lambda: update(number), static, net.parameters())
        captures.replays += 1
        return captures.graphs["all"].replay()

    def batch(index):
        time, seen = torch.rand(2, 16, 1, generator=torch.Generator().manual_seed(20_000 * seed + index))
        return {"time": 3 * time, "seen": seen}

    return StepFunction(step, batch, net, captured=captures.record)


def buggy(seed, captured):
    return make_step(seed, captured, lambda made, _: made)


def mended(seed, captured):
    return make_step(seed, captured, lambda made, on_device: on_device.fill_(made))
