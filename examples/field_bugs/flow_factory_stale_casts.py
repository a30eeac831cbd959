"""Several updates share one autocast region, which keeps using the casts of the weights before the first update."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="One autocast region around several updates trains on the weights before the first update",
    thread="X-GenGroup/Flow-Factory#186",
    users_saw="With float32 master weights the loss did not fall, and the divergence from the reference model stayed "
    "near 0.",
    cause="autocast caches its low-precision copies of weights until its region ends. The cache is not updated when an "
    "optimizer changes the weights in place.",
    fix="Each forward pass has its own autocast region.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, around_all=True)


def mended(seed, optimized):
    return make_step(seed, optimized, around_all=False)


def make_step(seed, optimized, around_all):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    autocast = lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=optimized)
    around = optimized and around_all

    def step(batch):
        """Three updates over one rollout."""
        total = torch.zeros(())
        with autocast() if around else nullcontext():
            for states, actions in zip(batch["states"].chunk(3), batch["actions"].chunk(3), strict=True):
                optimizer.zero_grad()
                with nullcontext() if around else autocast():
                    logits = policy(states)
                loss = functional.cross_entropy(logits.float(), actions)
                loss.backward()
                optimizer.step()
                total = total + loss.detach()
        return total / 3

    def batch(index):
        states = torch.randn(48, 10, generator=torch.Generator().manual_seed(20_000 * seed + index))
        return {"states": states, "actions": states[:, ::2].argmax(1)}

    return StepFunction(step, batch, policy)
