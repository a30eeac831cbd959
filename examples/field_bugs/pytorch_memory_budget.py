"""A memory budget recomputes dropout in the compiled backward pass, with a mask of its own."""

import torch
from torch import nn
from torch._functorch import config
from torch.nn import functional

from harness.system.step_function import StepFunction


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    layer = lambda inputs, outputs: [nn.Linear(inputs, outputs), nn.GELU(), nn.Dropout(0.3)]
    model = nn.Sequential(*layer(16, 32), *layer(32, 32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    forward = torch.compile(model, backend="aot_eager") if optimized else model

    def step(batch):
        optimizer.zero_grad()
        with config.patch(activation_memory_budget=1.0 if mended else 0.5):
            loss = functional.cross_entropy(forward(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        y = torch.randint(0, 4, (32,), generator=generator)
        return {"x": torch.randn(32, 16, generator=generator) + 2 * functional.one_hot(y, 16), "y": y}

    return StepFunction(step, batch, model)
