"""What a made step's arms and planted faults change of a plain run of it (`made_step.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.system.adapter_checks import require_loss
from harness.system.built import StepFunction
from harness.system.faulty_run import FAULTY_STEP
from harness.system.protocol import CaptureRecord, Expectation, FaultDescription
from harness.system.step_function_run import StepFunctionRun

if TYPE_CHECKING:
    from torch import Tensor

    from harness.contract.schema import Arm


# a compiled step draws random numbers as the step that is written does, or no dropout would be equal in both
AS_DRAWN: dict[str, str | int | bool | Callable[..., Any]] = {"fallback_random": True}


class AskedRun(StepFunctionRun):
    """The step as its arm asks for it, through torch.compile or not; its state is found from the step as written."""

    _compiled: Callable[[Any], Tensor] | None

    def __init__(self, opened: StepFunctionRun, arm: Arm) -> None:
        self._compiles = bool(arm.settings().get("compile"))
        super().__init__(opened._function, capture=arm.capture, layers=opened._layers)

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
    """Reads one value from the device in each step, and does nothing else."""

    def step_body(self) -> Callable[[], Tensor]:
        first = next(iter(self._parameters.values()))

        def wait() -> Tensor:
            total = first.detach().abs().sum()  # a loss is real, also where parameters are complex
            total.item()
            return total

        return wait


class UndoneRun(AskedRun):
    """From one step on the parameters are put back after every update."""

    def __init__(self, opened: StepFunctionRun, arm: Arm, first: int = 0) -> None:
        super().__init__(opened, arm)
        self._first, self._before = first, dict[str, Any]()

    def step(self, index: int) -> Tensor:
        import torch

        if index >= self._first and not self._before:
            self._before = {name: tensor.detach().clone() for name, tensor in self._parameters.items()}
        loss = super().step(index)
        with torch.no_grad():
            for name, before in self._before.items():
                self._parameters[name].copy_(before)
        return loss


class _BarelyTrained(AskedRun):
    """Keeps a millionth of the way that the parameters have gone from their start."""

    def __init__(self, opened: StepFunctionRun, arm: Arm) -> None:
        super().__init__(opened, arm)
        self._before = {name: tensor.detach().clone() for name, tensor in self._parameters.items()}

    def step(self, index: int) -> Tensor:
        import torch

        loss = super().step(index)
        with torch.no_grad():
            for name, before in self._before.items():
                self._parameters[name].copy_(before + 1e-6 * (self._parameters[name] - before))
        return loss


class _OtherLosses(AskedRun):
    def step(self, index: int) -> Tensor:
        return super().step(index) * (1 + random.SystemRandom().random() / 1000)


class _LargerLosses(AskedRun):
    def step(self, index: int) -> Tensor:
        return super().step(index) * 1.01


class _SecondCapture(AskedRun):
    def step(self, index: int) -> Tensor:
        if index == FAULTY_STEP:
            self.forget_captures()
        return super().step(index)

    def capture_record(self) -> CaptureRecord:
        """Captures of the step's own nobody can drop: it says that it made another one."""
        record = super().capture_record()
        return replace(record, captures=record.captures + 1) if self._captures_itself else record


class _CaptureEachStep(AskedRun):
    def step(self, index: int) -> Tensor:
        self.forget_captures()
        return super().step(index)

    def capture_record(self) -> CaptureRecord:
        record = super().capture_record()
        return replace(record, captures=record.replays) if self._captures_itself else record


class _StatisticsUpdatedTwice(AskedRun):
    """Keeps a running mean of its losses, and a count of them, in buffers, as BatchNorm does of its inputs."""

    def __init__(self, opened: StepFunctionRun, arm: Arm) -> None:
        import torch

        super().__init__(opened, arm)
        self._times = 1 + (arm.capture != "none" or self._compiles or bool(arm.settings().get("optimized")))
        self._statistics = {"running_mean": torch.zeros(()), "num_batches_tracked": torch.zeros((), dtype=torch.int64)}
        self._statistics = {name: tensor.to(self._device) for name, tensor in self._statistics.items()}

    def step(self, index: int) -> Tensor:
        loss = super().step(index)
        for _ in range(self._times):
            self._statistics["running_mean"].lerp_(loss.detach().reshape(()).float(), MOMENTUM)
            self._statistics["num_batches_tracked"] += 1
        return loss

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        found = super().state()
        planted = {f"planted.{name}": tensor for name, tensor in self._statistics.items()}
        return {**found, "buffers": {**found.get("buffers", {}), **planted}}


class _OtherGradients(AskedRun):
    """Gradients that are read are so many times what the step left."""

    def __init__(self, opened: StepFunctionRun, arm: Arm, factor: float) -> None:
        super().__init__(opened, arm)
        self._factor = factor

    def gradients(self) -> Mapping[str, Tensor]:
        return {name: gradient * self._factor for name, gradient in super().gradients().items()}


class _SkippedUpdate(AskedRun):
    def skipped_steps(self) -> int:
        return 1


MOMENTUM = 0.1  # torch's default for BatchNorm

FAULTS = {
    "stopped_training": FaultDescription(
        "stopped_training",
        "from the middle of the run on every update is undone",
        "candidate",
        dict.fromkeys(("trajectory_match", "throughput_ratio"), Expectation("FAIL", "exceeds_tolerance")),
    ),
    "barely_trained": FaultDescription(
        "barely_trained",
        "after every step the parameters have gone a millionth of their way",
        "both",
        dict.fromkeys(("trajectory_match", "repeatability"), Expectation("INCONCLUSIVE", "trained_too_little")),
    ),
    "other_losses": FaultDescription(
        "other_losses",
        "each loss is up to a thousandth larger, by numbers that no seed reaches",
        "candidate",
        dict.fromkeys(("repeatability", "throughput_ratio"), Expectation("FAIL", "differs")),
    ),
    "larger_losses": FaultDescription(
        "larger_losses",
        "each loss is a hundredth larger",
        "candidate",
        {"throughput_ratio": Expectation("FAIL", "beyond_noise")},
    ),
    "other_gradients": FaultDescription(
        "other_gradients",
        "each gradient that is read is a millionth larger than what the step left",
        "candidate",
        {"gradient_match": Expectation("FAIL", "differs")},
    ),
    "doubled_gradients": FaultDescription(
        "doubled_gradients",
        "each gradient that is read is twice what the step left",
        "candidate",
        {"gradient_match": Expectation("FAIL", "exceeds_tolerance")},
    ),
    "second_capture": FaultDescription(
        "second_capture",
        f"the capture is dropped before step {FAULTY_STEP}, which captures anew",
        "candidate",
        {"capture": Expectation("FAIL", "wrong_capture_count")},
    ),
    "capture_each_step": FaultDescription(
        "capture_each_step",
        "the capture is dropped before each step, which captures anew",
        "candidate",
        {"capture": Expectation("FAIL", "wrong_capture_count")},
    ),
    "statistics_updated_twice": FaultDescription(
        "statistics_updated_twice",
        "both arms keep a running mean and a count of losses in buffers; the optimized one updates them twice a step",
        "both",
        {"trajectory_match": Expectation("FAIL", "end_differs")},
    ),
    "skipped_update": FaultDescription(
        "skipped_update",
        "the run says that it left one update out",
        "candidate",
        {"capture": Expectation("FAIL", "skipped_steps")},
    ),
}


_PLANTED: dict[str, type[AskedRun]] = {
    "barely_trained": _BarelyTrained,
    "other_losses": _OtherLosses,
    "larger_losses": _LargerLosses,
    "second_capture": _SecondCapture,
    "capture_each_step": _CaptureEachStep,
    "statistics_updated_twice": _StatisticsUpdatedTwice,
    "skipped_update": _SkippedUpdate,
}
_FACTORS = {"other_gradients": 1 + 1e-6, "doubled_gradients": 2.0}


def with_fault(opened: StepFunctionRun, arm: Arm, fault: str, steps: int) -> StepFunctionRun:
    """The run with one of `FAULTS` planted; `steps` is how many it will make."""
    if fault == "stopped_training":
        return UndoneRun(opened, arm, first=steps // 2)
    if fault in _FACTORS:
        return _OtherGradients(opened, arm, _FACTORS[fault])
    return _PLANTED[fault](opened, arm)
