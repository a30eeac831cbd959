"""Prepare an optimizer for a captured step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer


def make_capturable(optimizer: Optimizer) -> None:
    """Prepare an optimizer for capture. Call this before the first update, and after the scheduler is created.

    Learning rates become tensors, which the scheduler writes and each replay reads. They are float64 on a CPU, where
    torch's fused update reads the number, and float32 on a GPU, which accepts no other type. On a GPU torch requires
    `capturable`. On a CPU only the fused update reads no value on the host.
    """
    import torch

    for group in optimizer.param_groups:
        device = group["params"][0].device
        on_gpu = device.type == "cuda"
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32 if on_gpu else torch.float64, device=device)
        flag = "capturable" if on_gpu else "fused"
        if flag in group:
            group[flag] = True
