"""The forward pass adds a balancing loss to the log; activation checkpointing runs the forward pass twice."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import normal_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The logged balancing loss is twice the real one",
    thread="NVIDIA/Megatron-LM#1330",
    users_saw="The logged load_balancing_loss is 2.2 with activation checkpointing, and 1.1 without.",
    cause="The forward pass adds the loss to the tracker, and activation checkpointing runs the forward pass twice.",
    fix="The loss is added only in the pass with gradients.",
    changed="The templates: the numbers of steps, and the intervals of saves and evaluations, are primes (43, 19, 7), "
    "so they are not multiples of a trainer's period. Before, they were 40, 20 and 10.",
)

LOGGED_EVERY = 10


def buggy(seed, optimized):
    return make_step(seed, optimized, tracks=lambda _: True)


def mended(seed, optimized):
    return make_step(seed, optimized, tracks=lambda recomputes: torch.is_grad_enabled() or not recomputes)


class Experts(nn.Module):
    def __init__(self, width, experts, tracker, tracks, recomputes):
        super().__init__()
        self.score, self.experts = nn.Linear(width, experts), nn.Linear(width, width * experts)
        self.tracker, self.tracks, self.recomputes = tracker, tracks, recomputes

    def forward(self, x):
        scores = self.score(x).softmax(-1)
        chosen = functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(x.dtype)
        balance = scores.shape[-1] * (scores.mean(0) * chosen.mean(0)).sum()
        if self.tracks(self.recomputes):
            self.tracker += balance.detach()
        each = self.experts(x).relu().unflatten(-1, (-1, x.shape[-1]))
        return x + (each * (scores * chosen)[..., None]).sum(1), balance


def make_step(seed, optimized, tracks):
    torch.manual_seed(seed)
    tracker, logged, steps = torch.zeros(()), [], [0]
    first, experts, last = nn.Linear(8, 16), Experts(16, 4, tracker, tracks, optimized), nn.Linear(16, 4)
    model = nn.ModuleList([first, experts, last])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(batch):
        optimizer.zero_grad()
        x = first(batch["x"])
        x, balance = checkpoint(experts, x, use_reentrant=True) if optimized else experts(x)
        loss = functional.cross_entropy(last(x), batch["y"]) + 0.01 * balance
        loss.backward()
        optimizer.step()
        steps[0] += 1
        if steps[0] % LOGGED_EVERY == 0:
            logged.append((tracker / LOGGED_EVERY).item())
            tracker.zero_()
        return loss.detach()

    batch = normal_batches(seed, (32, 8), lambda x: x[:, :4].argmax(1))

    return StepFunction(step, batch, model)
