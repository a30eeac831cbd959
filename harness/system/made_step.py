"""Run a project's function that makes its training step as a system, with the arms that any such step can have.

    class System(MadeStepSystem):
        name = "train:make_step"

        def build(self, workload, arm):
            from train import make_step

            return make_step(seed=workload.seed)

`harness init` and `harness try --write-contract` write such a file. Its faults are there for every step, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.system.adapter_checks import AdapterError
from harness.system.built import StepFunction
from harness.system.made_runs import AskedRun, WaitingRun, as_asked, made_step_faults
from harness.system.protocol import Scalar, SystemDescription
from harness.system.step_function import StepFunctionSystem
from harness.system.users_code import definition

if TYPE_CHECKING:
    from harness.contract.schema import Arm, Workload


class MadeStepSystem(StepFunctionSystem):
    """Subclass, and define `build`.

    Arm options: `trains: false` undoes every update, for a control; `waits: true` reads one value from the device in
    place of a step, for a control of host syncs; `compile: true` puts the step through torch.compile; `optimized` is
    for `build` to read.
    """

    summary = "a step that a function of the project makes"
    arm_options: Mapping[str, Sequence[Scalar] | type] = MappingProxyType(
        {"trains": bool, "waits": bool, "compile": bool, "optimized": bool}
    )

    captures_itself = False  # whether `build` makes a step that captures itself where the arm asks for a capture

    def describe(self) -> SystemDescription:
        described = super().describe()
        return replace(described, faults={**made_step_faults(), **described.faults})

    def _built(self, workload: Workload, arm: Arm, fault: str | None) -> StepFunction:
        function = super()._built(workload, arm, fault)
        if self.captures_itself and function.captured is None:
            raise AdapterError(
                "a function that takes `captured` says what its step captured",
                where=definition(function.step),
                got="no `captured` in what it returns",
                remedy="return StepFunction(…, captured=…), a function that returns the CaptureRecord",
            )
        return function

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> Any:
        """Open the run of an arm: a `StepFunctionRun`, or a wrapper that changes one thing of it."""
        ours = fault if fault is not None and fault in {*made_step_faults()} - {*self.faults} else None
        opened = super().open(workload, arm, fault=None if ours else fault, data=data, model_directory=model_directory)
        if arm.settings().get("waits") and not ours:
            return WaitingRun(opened, arm)
        return as_asked(AskedRun(opened, arm), arm, ours, workload.steps)
