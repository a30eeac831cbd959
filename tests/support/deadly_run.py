"""The places where an arm of `deadly_system` dies: its step function, a method of its run, or a write of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from deadly_system import misbehave
from step_function_systems import Descending, Regression
from torch import Tensor, nn

from harness.evidence.arm_records import ArmEnd
from harness.evidence.base import Record
from harness.execution.recorder import Recorder
from harness.system.protocol import Arm, TrainingRun, Workload

LATER = 3  # a step in the middle of the series, a replay where the arm is captured
STEP_OF = {"first_step": 0, "later_step": LATER, "replay": LATER}
METHOD_OF = {"gradients": "gradients", "state": "parameters", "end": "__exit__"}
# ways to die that leave the process alive: half a line before them would be damage that no worker makes
ALIVE = {"raise", "system_exit", "closed_output", "no_directory", "full_disk", "memory", "nonsense"}


def opened(workload: Workload, arm: Arm, phase: str, cause: str, options: Mapping[str, Any]) -> TrainingRun:
    """Return a run that trains and dies in the given phase; with an empty phase it does not die."""
    die = partial(misbehave, cause)
    if phase == "open" and (nonsense := die()) is not None:
        return cast("TrainingRun", nonsense)
    system = DiesInCapture(die) if phase == "capture" else Descending()
    training = system.open(workload, arm, **options)
    if phase in STEP_OF:
        _dies_in_step(training, STEP_OF[phase], die)
    elif phase in METHOD_OF:
        _dies_in_method(training, METHOD_OF[phase], die)
    elif phase == "write":
        _dies_in_write(f"{phase}_{cause}", die, torn=cause not in ALIVE)
    return cast("TrainingRun", training)


class DiesInCapture(Regression):
    """Die within the step function while it is captured."""

    def __init__(self, die: Callable[[], Any]) -> None:
        self._die = die

    def before_update(self, loss: Tensor, _model: nn.Module) -> None:
        if (nonsense := self._die()) is not None:
            loss.backward(nonsense)  # type: ignore[no-untyped-call]


def _dies_in_step(training: Any, index: int, die: Callable[[], Any]) -> None:
    kind = type(training)

    def step(self: Any, now: int) -> Any:
        nonsense = die() if now == index else None
        return kind.step(self, now) if nonsense is None else nonsense

    training.__class__ = type("Deadly", (kind,), {"step": step})


def _dies_in_method(training: Any, name: str, die: Callable[[], Any]) -> None:
    """Make a method die, but only after the first step, because parameters are read before it."""
    kind = type(training)
    steps: list[int] = []

    def step(self: Any, index: int) -> Any:
        steps.append(index)
        return kind.step(self, index)

    def method(self: Any, *arguments: Any) -> Any:
        nonsense = die() if steps else None
        return getattr(kind, name)(self, *arguments) if nonsense is None else nonsense

    training.__class__ = type("Deadly", (kind,), {"step": step, name: method})


def _dies_in_write(arm: str, die: Callable[[], Any], *, torn: bool) -> None:
    """Die while the record of the arm's end is written: in the middle of its line if `torn`, else before it."""
    write = Recorder.write

    def writes(self: Recorder, record: Record) -> None:
        if isinstance(record, ArmEnd) and record.arm == arm:
            if torn:
                self._records.write('{"record": "arm_end", "arm"')
            if (nonsense := die()) is not None:
                self._records.write(f"{nonsense}\n")
        write(self, record)

    Recorder.write = writes  # type: ignore[method-assign]
