"""A user's trainer whose parameters have the data type that its arm names, and mistakes in that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunction, StepFunctionSystem


class TwoDtypes(StepFunctionSystem):
    """Least squares; parameters, moments and products have the arm's data type and start from the same float32."""

    name = "two dtypes"
    arm_options: Mapping[str, Any] = {"dtype": ("bfloat16", "float32")}
    heeds = True
    off_by = 0.0

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        torch.manual_seed(workload.seed)
        model = nn.Linear(8, 1)
        dtype = getattr(torch, str(arm.settings()["dtype"])) if self.heeds else torch.float32
        if dtype is torch.bfloat16 or not self.heeds:
            model.weight.data[0, 3] += self.off_by
        model.to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(batch: dict[str, Tensor]) -> Tensor:
            optimizer.zero_grad()
            error = model(batch["x"].to(dtype)).float() - batch["x"].sum(1, keepdim=True)
            loss: Tensor = error.square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        def batch(index: int) -> dict[str, Tensor]:
            return {"x": torch.randn(16, 8, generator=torch.Generator().manual_seed(index))}

        return StepFunction(step=step, batch=batch, parameters=lambda: dict(model.named_parameters()))


class UnheededDtype(TwoDtypes):
    heeds = False


class OneElementOff(TwoDtypes):
    off_by = 0.01


class OtherSeed(TwoDtypes):
    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        other = arm.settings()["dtype"] == "bfloat16"
        return super().build(workload.model_copy(update={"seed": 7}) if other else workload, arm)
