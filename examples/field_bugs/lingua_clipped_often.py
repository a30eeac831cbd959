"""Gradients are clipped after each micro-batch instead of once before the update."""

import torch
from torch import nn

from examples.field_bugs.bug import Bug
from examples.field_bugs.small_training import next_token_loss, token_batches
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Gradients are clipped in each micro-batch",
    thread="facebookresearch/lingua#59",
    users_saw="With gradient accumulation, training differs from training on the whole batch.",
    cause="The gradients are clipped after every backward pass, so the gradients of earlier micro-batches are scaled "
    "down repeatedly.",
    fix="The gradients are clipped once, right before the update.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(32, 32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    micro_batches = 4 if optimized else 1

    def step(batch):
        optimizer.zero_grad()
        total = torch.zeros(())
        for tokens in batch["tokens"].chunk(micro_batches):
            loss = next_token_loss(model, tokens) / micro_batches
            loss.backward()
            if not mended:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            total = total + loss.detach()
        if mended:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return total

    batch = token_batches(seed, 8, 17, apart=1000)

    return StepFunction(step, batch, model)
