"""The regression, which reports its largest absolute weight in addition to its loss."""

from __future__ import annotations

from typing import Any

import torch
from step_function_systems import Regression
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.system.protocol import Expectation
from harness.system.step_function import PlantedFault, StepFunction


def _ascending(right: StepFunction) -> StepFunction:
    """Reverse the step's update, so that parameters move equally far in the other direction."""

    def step(batch: dict[str, Tensor]) -> Tensor:
        before = {name: tensor.detach().clone() for name, tensor in right.parameters().items()}
        loss = right.step(batch)
        with torch.no_grad():
            for name, tensor in right.parameters().items():
                tensor.copy_(2 * before[name] - tensor)
        return loss

    return StepFunction(step, right.batch, right.parameters, metrics=right.metrics)


class Measured(Regression):
    """Record the largest absolute weight of the trained model."""

    name = "measured"
    faults = {"ascending": PlantedFault("up", _ascending, {"not_worse": Expectation("FAIL", "worse")})}  # noqa: RUF012

    def build(self, workload: Workload, arm: Arm) -> Any:
        step, batch, parameters = super().build(workload, arm)
        self.largest: Any = None  # bound anew by each step

        def measured(given: dict[str, Tensor]) -> Tensor:
            loss: Tensor = step(given)
            self.largest = torch.stack([tensor.detach().abs().max() for tensor in parameters().values()]).max()
            return loss

        return StepFunction(measured, batch, parameters, metrics=lambda: {"largest_weight": self.largest})
