"""A small trainer whose optimized arm can differ from the plain one in one line, which ends with `# fault`."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from harness.system.step_function import StepFunctionSystem

FAULTS = (
    *("none", "scaled", "momentum", "tripled", "unclipped", "late", "drawn", "batch", "skipped", "unrepeated"),
    *("autocast", "rounded"),
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.scale = nn.Linear(8, 8), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * torch.tanh(self.up(x))  # scaled autocast


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


class Parting(StepFunctionSystem):
    arm_options = {"fault": FAULTS}  # noqa: RUF012

    def build(self, workload: Any, arm: Any) -> Any:
        fault = arm.settings().get("fault", "none")
        torch.manual_seed(workload.seed)
        first, changed = Block(), Block()
        model = nn.Sequential(first, changed, nn.Linear(8, 1))
        velocity = [torch.zeros_like(each) for each in model.parameters()]
        drawing = torch.Generator().manual_seed(1 if fault == "drawn" else 0)
        taken = torch.zeros(())

        def step(batch: dict[str, torch.Tensor]) -> Any:
            taken.add_(1)
            late = fault == "late" and bool(taken == 4)
            changed.scale = 0.5 if fault == "scaled" else 1.0
            model.zero_grad()
            kept = torch.empty(4, 8).bernoulli_(0.9, generator=drawing)  # drawn
            if fault == "unrepeated" and not torch.are_deterministic_algorithms_enabled():
                kept[0, 0] = os.getrandom(1)[0]
            read = batch["x"] * kept
            if fault == "rounded":
                read = read.bfloat16().float()  # rounded
            with torch.autocast("cpu", torch.bfloat16, enabled=fault == "autocast"):
                made = model(read)
            loss = (made - batch["y"]).square().mean()
            (3 * loss if fault == "tripled" else loss).backward()  # tripled
            if fault != "unclipped":
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)  # unclipped
            with torch.no_grad():
                for each, moved in zip(model.parameters(), velocity, strict=True):
                    moved.mul_(0.8 if fault == "momentum" else 0.9).add_(gradient_of(each))  # momentum
                    if fault != "skipped" or each.dim() > 1:
                        each.sub_(moved, alpha=0.2 if late else 0.1)  # late skipped
            return loss.detach()

        def batch(index: int) -> dict[str, torch.Tensor]:
            made = torch.Generator().manual_seed(index + (fault == "batch" and index >= 2))
            x = torch.randn(4, 8, generator=made)
            return {"x": x, "y": x.sum(1, keepdim=True)}

        return step, batch, model
