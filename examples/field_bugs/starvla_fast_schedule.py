"""The schedule advances with every micro-batch, but the optimizer updates only with every fourth."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="The schedule advances faster than the optimizer",
    thread="starVLA/starVLA#210",
    users_saw="With gradient accumulation the learning rate decays too fast, and it jumps after a resume.",
    cause="The schedule advances in every micro-batch, but the optimizer updates only in the last one.",
    fix="The schedule advances when the optimizer updates.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 6))  # an observation -> scores of six actions
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=100)
    micro_batches = 4 if optimized else 1

    def step(batch):
        optimizer.zero_grad()
        total = torch.zeros(())
        pairs = zip(batch["seen"].chunk(micro_batches), batch["actions"].chunk(micro_batches), strict=True)
        for number, (seen, actions) in enumerate(pairs, 1):
            loss = functional.cross_entropy(model(seen), actions) / micro_batches
            loss.backward()
            total = total + loss.detach()
            updates = number == micro_batches
            if updates:
                optimizer.step()
            if updates or not mended:
                schedule.step()
        return total

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        actions = torch.randint(0, 6, (32,), generator=generator)
        return {
            "seen": torch.randn(32, 12, generator=generator) + 2 * functional.one_hot(actions, 12),
            "actions": actions,
        }

    return StepFunction(step, batch, model)
