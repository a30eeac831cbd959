"""Trainers whose clip hides that the captured arm's gradients are too large."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunction, StepFunctionSystem


class Clipped(StepFunctionSystem):
    """Multiply the captured arm's loss by `factor`; the clip is active in every step."""

    factor = 1.0

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        torch.manual_seed(workload.seed)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=float(arm.settings().get("learning_rate", 0.05)))
        factor = self.factor if arm.capture == "step" else 1.0

        def step(batch: Mapping[str, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(batch["x"]).squeeze(-1) - batch["y"]).square().mean()
            (loss * factor).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
            optimizer.step()
            return loss.detach()

        def batch(index: int) -> dict[str, Tensor]:
            generator = torch.Generator().manual_seed(workload.seed * 1000 + index)
            x = torch.randn(16, 6, generator=generator)
            return {"x": x, "y": x.sum(dim=-1) + 3}

        return StepFunction(step=step, batch=batch, parameters=lambda: dict(model.named_parameters()))


class FourTimes(Clipped):
    factor = 4.0
