"""A compiled backward pass with a memory budget recomputes dropout with another mask than the forward pass used."""

import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch import nn

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A compiled backward pass uses a different dropout mask than the forward pass",
    thread="pytorch/pytorch#190758",
    package="torch==2.13.0",
    users_saw="With `activation_memory_budget` below 1 a compiled model with dropout trained to NaN or to chance "
    "level, without an error.",
    cause="The partitioner recomputes random operations in the backward pass, which draws new random numbers.",
    fix="torch 2.13.0 has no fix. With a budget of 1 the results of random operations are kept.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, budget=0.2)


def mended(seed, optimized):
    return make_step(seed, optimized, budget=1.0)


def make_step(seed, optimized, budget):
    functorch_config.activation_memory_budget = budget
    inductor_config.fallback_random = True  # the compiled step draws the same random numbers as the plain step
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    forward = torch.compile(model) if optimized else model

    def step(batch):
        optimizer.zero_grad()
        loss = (forward(batch["x"]) - batch["y"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        x = torch.randn(32, 16, generator=generator)
        return {"x": x, "y": x[:, :2].sin()}

    return StepFunction(step=step, batch=batch, parameters=model)
