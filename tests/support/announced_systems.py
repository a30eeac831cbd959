"""Systems that refuse steps beyond the number for which they were opened, as a learning-rate schedule does."""

from __future__ import annotations

from typing import Any

from step_function_systems import Regression, Waits
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.system.wrappers import FaultyRun


class OneStepTooManyError(Exception):
    """The trainer has planned fewer steps than it was asked to run."""


class Counted(FaultyRun):
    """A run that allows a fixed number of steps, counted from the step at which it was loaded."""

    def step(self, index: int) -> Tensor:
        self._steps -= 1
        if self._steps < 0:
            raise OneStepTooManyError(f"step {index}")
        return self._inner.step(index)


class Announced(Regression):
    """Allow as many steps as the workload has when the run is opened."""

    def open(self, workload: Workload, arm: Arm, **options: Any) -> Any:
        return Counted(super().open(workload, arm, **options), workload.steps)

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        step, batch, parameters = super().build(workload, arm)
        left = [workload.steps]

        def counted(given: dict[str, Tensor]) -> Tensor:
            left[0] -= 1
            if left[0] < 0:
                raise OneStepTooManyError("in the step itself")
            loss: Tensor = step(given)
            return loss

        return counted, batch, parameters


class AnnouncedWaits(Announced, Waits):
    """Wait for the device in every step. The name combines those of its two base classes."""
