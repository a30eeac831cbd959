"""Make a system from a project's function that builds a training step. The system has arm options and planted faults
that fit any training step.

    class System(MadeStepSystem):
        name = "train:make_step"

        def build(self, workload, arm):
            from train import make_step

            return make_step(seed=workload.seed)

`harness init` and `harness try --write-contract` write such a file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from harness.evidence.arm_records import CAPTURES_ITSELF
from harness.system.adapter_checks import AdapterError, require_loss
from harness.system.built import StepFunction
from harness.system.protocol import CaptureRecord, FaultDescription, HasState, Scalar, SystemDescription, TrainingRun
from harness.system.step_function import StepFunctionSystem
from harness.system.step_function_run import StepFunctionRun
from harness.system.users_code import definition
from harness.system.wrappers import FAULTY_STEP, FaultyRun, described_faults, planted

if TYPE_CHECKING:
    from torch import Tensor

    from harness.contract.schema import Arm, Workload

_GROUP = "of_made_steps"  # name of a group in `faults.yaml`
# After n updates, an average has moved by 1 - (1 - MOMENTUM)^n of the distance to a constant value. With one and two
# updates in each step, this is 18 % and 33 % after 200 steps, 86 % and 98 % after 2,000 steps. With 0.1, torch's
# default for BatchNorm, both would be above 99 % after 50 steps, and a claim with a bound of 5 % would miss the fault.
MOMENTUM = 0.001
# With this option a compiled step draws the same random numbers as the uncompiled step. Otherwise dropout would differ.
AS_DRAWN: dict[str, str | int | bool | Callable[..., Any]] = {"fallback_random": True}


class AskedRun(StepFunctionRun):
    """Runs the step compiled or uncompiled, as the arm requests. The harness always searches the uncompiled step for
    state."""

    _compiled: Callable[[Any], Tensor] | None

    def __init__(self, opened: StepFunctionRun, arm: Arm) -> None:
        self._compiles = bool(arm.settings().get("compile"))
        super().__init__(opened._function, capture=arm.capture, layers=opened._layers, warm_steps=arm.warm_steps)

    def _begin(self, function: StepFunction) -> None:
        import torch

        super()._begin(function)
        self._compiled = torch.compile(function.step, options=AS_DRAWN) if self._compiles else None

    def step_body(self) -> Callable[[], Tensor]:
        compiled, written, copied = self._compiled, self._function.step, self._copied_batch()
        if compiled is None:
            return super().step_body()

        def step() -> Tensor:
            return require_loss(compiled(copied()), written, "step(batch)")

        return step


class WaitingRun(AskedRun):
    """Executes no training step. Each step only reads one value from the device, so it waits for the device. A control
    with such steps shows that host syncs are detected."""

    def step_body(self) -> Callable[[], Tensor]:
        first = next(iter(self._parameters.values()))

        def wait() -> Tensor:
            # A loss must be real, and the parameters may be complex. `abs` makes the sum real.
            total = first.detach().abs().sum()
            total.item()
            return total

        return wait


class UndoneRun(FaultyRun):
    """Restores the parameters after every update, from step `first` on."""

    def __init__(self, inner: TrainingRun, steps: int, first: int = 0) -> None:
        super().__init__(inner, steps)
        self._first, self._before = first, list[Any]()

    def step(self, index: int) -> Tensor:
        if index >= self._first and not self._before:
            self._before = [parameter.clone() for parameter in self._trained()]
        loss = self._inner.step(index)
        if self._before:
            for parameter, before in zip(self._trained(), self._before, strict=True):
                parameter.copy_(before)
        return loss


class StoppedTraining(UndoneRun):
    def __init__(self, inner: TrainingRun, steps: int) -> None:
        super().__init__(inner, steps, first=steps // 2)


class BarelyTrained(FaultyRun):
    """After each step, moves each parameter back towards its initial value, so that only a millionth of the distance
    remains."""

    def __init__(self, inner: TrainingRun, steps: int) -> None:
        super().__init__(inner, steps)
        self._before = [parameter.clone() for parameter in self._trained()]

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        for parameter, before in zip(self._trained(), self._before, strict=True):
            parameter.copy_(before + 1e-6 * (parameter - before))
        return loss


class OtherLosses(FaultyRun):
    def step(self, index: int) -> Tensor:
        return self._inner.step(index) * (1 + random.SystemRandom().random() / 1000)


class LargerLosses(FaultyRun):
    def step(self, index: int) -> Tensor:
        return self._inner.step(index) * 1.01


class CapturedAnew(FaultyRun):
    """Drops the capture before one step, or before each step. If the step makes its capture by itself, nothing is
    dropped, and only the number of captures in the step's report is raised."""

    def __init__(self, inner: TrainingRun, steps: int, *, each_step: bool) -> None:
        self._each_step = each_step
        super().__init__(inner, steps)

    def _replace_capabilities(self) -> None:
        record = getattr(self._inner, "capture_record", None)
        if record is not None and self._inner.facts().get(CAPTURES_ITSELF):
            self.capture_record = lambda: self._changed(record())

    def _changed(self, record: CaptureRecord) -> CaptureRecord:
        return replace(record, captures=record.replays if self._each_step else record.captures + 1)

    def step(self, index: int) -> Tensor:
        if self._each_step or index == FAULTY_STEP:
            cast("StepFunctionRun", self._inner).forget_captures()
        return self._inner.step(index)


class StatisticsUpdatedTwice(FaultyRun):
    """Adds state like that of BatchNorm, namely the mean and the count of the losses. Each step updates mean and count
    `times` times instead of once."""

    def __init__(self, inner: TrainingRun, steps: int, times: int) -> None:
        import torch

        device = str(inner.facts().get("device", "cpu"))
        self._times = times
        self._statistics = {
            "planted.running_mean": torch.zeros((), device=device),
            "planted.num_batches_tracked": torch.zeros((), dtype=torch.int64, device=device),
        }
        super().__init__(inner, steps)

    def _replace_capabilities(self) -> None:
        if isinstance(self._inner, HasState):
            self.state = self._with_statistics

    def step(self, index: int) -> Tensor:
        mean, count = self._statistics.values()
        loss = self._inner.step(index)
        for _ in range(self._times):
            mean.lerp_(loss.detach().reshape(()).float(), MOMENTUM)
            count += 1
        return loss

    def _with_statistics(self) -> Mapping[str, Mapping[str, Tensor]]:
        found = cast("HasState", self._inner).state()
        return {**found, "buffers": {**found.get("buffers", {}), **self._statistics}}


class OtherGradients(FaultyRun):
    """Multiplies the gradients that the harness reads by `factor`. The training does not change."""

    def __init__(self, inner: TrainingRun, steps: int, factor: float) -> None:
        self._factor = factor
        super().__init__(inner, steps)

    def _replace_capabilities(self) -> None:
        gradients = getattr(self._inner, "gradients", None)
        if gradients is not None:
            self.gradients = lambda: {name: each * self._factor for name, each in gradients().items()}


class SkippedUpdate(FaultyRun):
    def skipped_steps(self) -> int:
        return 1


@cache
def made_step_faults() -> dict[str, FaultDescription]:
    """Return the faults that can be planted in any training step, by name."""
    return described_faults(_GROUP)


def with_fault(opened: TrainingRun, arm: Arm, fault: str, steps: int) -> FaultyRun:
    """Return the run with a fault of `made_step_faults` planted. steps: how many steps the run will execute."""
    if fault == "statistics_updated_twice":
        settings = arm.settings()
        optimized = arm.capture != "none" or any(settings.get(name) for name in ("compile", "optimized", "arguments"))
        return StatisticsUpdatedTwice(opened, steps, 2 if optimized else 1)
    return planted(opened, _GROUP, fault, steps)


def as_asked(opened: TrainingRun, arm: Arm, fault: str | None, steps: int) -> TrainingRun:
    """Return the run with the fault planted. Without a fault, return the run itself or, if the arm has the option
    `trains: false`, a run that undoes every update."""
    if fault is not None:
        return with_fault(opened, arm, fault, steps)
    return UndoneRun(opened, steps) if arm.settings().get("trains") is False else opened


class MadeStepSystem(StepFunctionSystem):
    """A system whose steps come from a function of the project. Subclass this class and define `build`.

    Arm options:

    - `trains: false` undoes every update. It is meant for a control.
    - `waits: true` executes no training step; each step only reads one value from the device. It is meant for a control
    of host syncs.
    - `compile: true` compiles the step with torch.compile.
    - `optimized` has no effect by itself. `build` can read it.
    """

    summary = "a training step from a function of the project"
    arm_options: Mapping[str, Sequence[Scalar] | type] = MappingProxyType(
        {"trains": bool, "waits": bool, "compile": bool, "optimized": bool}
    )

    # True if `build` returns a step that makes its own capture when the arm requests a capture.
    captures_itself = False

    def describe(self) -> SystemDescription:
        described = super().describe()
        return replace(described, faults={**made_step_faults(), **described.faults})

    def _built(self, workload: Workload, arm: Arm, fault: str | None) -> StepFunction:
        function = super()._built(workload, arm, fault)
        if self.captures_itself and function.captured is None:
            raise AdapterError(
                "a function with the argument `captured` must also return a function that reports the step's capture",
                where=definition(function.step),
                got="no `captured` in its return value",
                remedy="return StepFunction(…, captured=…), where `captured` is a function that returns the "
                "CaptureRecord",
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
        """Open the run of an arm: a `StepFunctionRun`, or a wrapper that plants a fault or applies an arm option."""
        ours = fault if fault is not None and fault in {*made_step_faults()} - {*self.faults} else None
        opened = super().open(workload, arm, fault=None if ours else fault, data=data, model_directory=model_directory)
        if arm.settings().get("waits") and not ours:
            return WaitingRun(opened, arm)
        return as_asked(AskedRun(opened, arm), arm, ours, workload.steps)
