"""Prepare an optimizer for a captured step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer


def make_capturable(optimizer: Optimizer) -> None:
    """Let a captured step hold the optimizer's update. Call it before the first update, with the scheduler made.

    Learning rates become tensors, which the scheduler fills and a captured step reads anew: of float64 on a CPU, where
    torch's fused update reads the number, and of float32 on a GPU, which accepts no other. On a GPU torch requires
    `capturable`; on a CPU only the fused update reads no value on the host.
    """
    import torch

    for group in optimizer.param_groups:
        device = group["params"][0].device
        on_gpu = device.type == "cuda"
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32 if on_gpu else torch.float64, device=device)
        flag = "capturable" if on_gpu else "fused"
        if flag in group:
            group[flag] = True
