"""A training system whose arms fail as their setting `fails` says; an arm without the setting trains."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from sockets import write_to_sockets
from step_function_systems import Descending
from torch import Tensor

from harness.system.protocol import Arm, NotAvailable, SystemDescription, TrainingRun, Workload

FAILING_STEP = 1


class Failing:
    """A run that passes everything to the inner run, except for the step `FAILING_STEP`."""

    def __init__(self, inner: TrainingRun, how: str) -> None:
        self._inner, self._how = inner, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, index: int) -> Tensor:
        if index == FAILING_STEP:
            return cast("Tensor", misbehave(self._how))
        return self._inner.step(index)

    def __enter__(self) -> Self:
        self._inner = self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)


def misbehave(how: str) -> Any:
    match how:
        case "raises":
            raise ValueError("this arm is broken")
        case "exits":
            raise SystemExit(0)
        case "interrupts":
            raise KeyboardInterrupt
        case "unavailable":
            raise NotAvailable("this arm needs a part that is not here")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leaves":
            os._exit(0)
        case "removes":
            files = [os.path.realpath(f"/proc/self/fd/{number}") for number in range(3, 64)]
            shutil.rmtree(next(Path(file) for file in files if file.endswith("records.jsonl")).parent)
        case "garbles":
            write_to_sockets(b"...\n")
            time.sleep(600)
        case "hangs":
            time.sleep(600)
    return 0.5  # no tensor


class FailingArms:
    """A system around `Descending`.

    `fails: <how>` fails in a step, `fails: open+<how>` when the arm is opened. `fails: type` opens no run.
    """

    def describe(self) -> SystemDescription:
        return Descending().describe()

    def open(self, workload: Workload, arm: Arm, **options: Any) -> TrainingRun:
        how = str(arm.settings().get("fails", ""))
        if how == "type":
            return cast("TrainingRun", 3)
        if how.startswith("open+"):
            misbehave(how.removeprefix("open+"))
        plain = Arm.model_validate({name: value for name, value in arm.model_dump().items() if name != "fails"})
        training: TrainingRun = Descending().open(workload, plain, **options)
        return cast("TrainingRun", Failing(training, how)) if how else training
