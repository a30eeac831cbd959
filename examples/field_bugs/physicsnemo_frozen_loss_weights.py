"""A physics-informed network for a damped motion; the weights of its losses keep their values from the capture.

How the bug arises: the trainer captures a step and replays it from then on. It passes the step number to the code that
weights the losses as an `int`, which the graph keeps. (The original trainer makes its first 20 steps uncaptured.)
"""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Loss weights keep their values from the captured step",
    thread="NVIDIA/physicsnemo-sym#279",
    users_saw="With CUDA graphs the loss weights of an aggregator, which depend on the step number, never change "
    "after step 20.",
    cause="The trainer passes the step number to the losses and to the aggregator as an `int`. The capture, which "
    "happens after 20 plain steps, makes the number a constant of the graph.",
    fix="The step number is a tensor that is filled in place before each replay (NVIDIA/physicsnemo-sym#280).",
    changed="The entry: it now captures in its first step. Before, it made 20 plain steps first, which the claim "
    "CAPTURES cannot describe.",
    trouble="At first the entry made its first 20 steps uncaptured, like the trainer, so CAPTURES failed for "
    "the fixed form too (`uncaptured_steps`). Training before the capture is not an error, but the claim has no field "
    "for it. The entry now captures in its first step.",
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
