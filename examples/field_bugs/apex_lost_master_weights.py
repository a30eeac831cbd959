"""A fused Adam with `master_weights=True` keeps no master weights of bfloat16 parameters."""

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A fused optimizer keeps no master weights in bfloat16, although the user requested them",
    thread="NVIDIA/apex#1728",
    users_saw="Even with `master_weights=True`, small updates are lost in bfloat16 rounding.",
    cause="The optimizer creates master weights only for float16 parameters.",
    fix="The optimizer creates master weights for bfloat16 parameters too.",
    changed="The harness: it used to refuse an optimizer that updates copies of the trainer's parameters, and an "
    "optimized arm that starts with additional tensors. It now accepts both.",
)


def buggy(seed, optimized):
    return make_step(seed, optimized, mended=False)


def mended(seed, optimized):
    return make_step(seed, optimized, mended=True)


def make_step(seed, optimized, mended):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).bfloat16()
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    kept = mended or not optimized
    optimizer = torch.optim.Adam(masters if kept else model.parameters(), lr=2e-4, fused=optimized)

    def step(batch):
        model.zero_grad()
        loss = functional.mse_loss(model(batch["x"]).float(), batch["y"])
        loss.backward()
        if kept:
            for master, parameter in zip(masters, model.parameters(), strict=True):
                master.grad = parameter.grad.float()
        optimizer.step()
        if kept:
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    parameter.copy_(master)
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        x = torch.randn(16, 8, generator=generator)
        return {"x": x.bfloat16(), "y": x.sum(dim=1, keepdim=True)}

    return StepFunction(step, batch, model)
