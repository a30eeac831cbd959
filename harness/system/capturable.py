"""Prepare an optimizer for a captured training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer


def make_capturable(optimizer: Optimizer) -> None:
    """Prepare an optimizer for capture. Call this before the first update, and after the scheduler is created.

    Each learning rate becomes a tensor. The scheduler writes this tensor, and each replay reads it. The tensor is
    float64 on a CPU, and float32 on a GPU, because torch's fused update accepts no other type there. On a GPU, torch
    requires `capturable`. On a CPU the option `fused` is set, because only the fused update reads no value on the host.
    """
    import torch

    for group in optimizer.param_groups:
        device = group["params"][0].device
        on_gpu = device.type == "cuda"
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32 if on_gpu else torch.float64, device=device)
        flag = "capturable" if on_gpu else "fused"
        if flag in group:
            group[flag] = True
