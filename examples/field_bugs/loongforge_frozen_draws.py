"""A policy learns actions by flow matching from two micro-batches in each step; its random numbers are frozen.

How the bug arises: for each micro-batch the host draws the flow time at which the policy is trained. One graph of the
whole iteration keeps the numbers that were drawn during the capture.
"""

import random

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A CUDA graph freezes random numbers that the host draws",
    thread="baidu-baige/LoongForge#49",
    users_saw="With one graph for the whole iteration, the loss differs from plain training by 3.5 % on average over "
    "100 iterations.",
    cause="The random noise and times of the flow-matching loss are drawn inside the captured region. The times come "
    "from a random generator of the host, so a replay does not draw them again.",
    fix="Noise and times are drawn between replays, in the order of plain training, and written into buffers that the "
    "graph reads.",
)


class Times:
    def __init__(self, seed):
        self.generator = random.Random(seed)

    def drawn(self):
        return [self.generator.betavariate(1.5, 1.0) for _ in range(2)]

    def of_step(self):
        return self.drawn()

    def after_step(self):
        pass


class TimesDrawnBetweenSteps(Times):
    def __init__(self, seed):
        super().__init__(seed)
        self.slots = torch.zeros(2, device=DEVICE).unbind()
        self.after_step()

    def of_step(self):
        return self.slots

    def after_step(self):
        for slot, time in zip(self.slots, self.drawn(), strict=True):
            slot.fill_(time)


def make_step(seed, times_class):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(4 + 2 + 1, 16), nn.SiLU(), nn.Linear(16, 2)).to(DEVICE)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    times, best = times_class(seed), torch.randn(4, 2)

    def step(batch):
        optimizer.zero_grad()
        losses = []
        for state, action, noise, time in zip(*batch.values(), times.of_step(), strict=True):
            between = time * action + (1 - time) * noise
            asked = torch.cat([state, between, torch.zeros_like(state[:, :1]) + time], 1)
            losses.append((policy(asked) - (action - noise)).square().mean())
            losses[-1].backward()
        optimizer.step()
        return sum(losses).detach()

    def batch(index):
        generator = torch.Generator().manual_seed(20_000 * seed + index)
        state, noise = torch.randn(2, 8, 4, generator=generator), torch.randn(2, 8, 2, generator=generator)
        return {"state": state, "action": torch.tanh(state @ best), "noise": noise}

    return StepFunction(step, batch, policy, after=times.after_step)


def buggy(seed):
    return make_step(seed, Times)


def mended(seed):
    return make_step(seed, TimesDrawnBetweenSteps)
