"""Trainers whose checkpoints are correct only once, or not at an epoch's end, or not while training goes on.

Next to them are correct trainers that look similar.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from checkpoint_systems import BATCH, ROWS, ByIndex, Loader, Right
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunction

EPOCH = ROWS // BATCH  # steps


class WithLoader(Right):
    """Use the loader class that a subclass sets as `loader`."""

    loader: type[Loader]

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        function = super().build(workload, arm)
        self.trainer.loader = self.loader(workload.seed)
        return function


class SecondResumeLoader(Loader):
    """Count batches since the process started, and skip so many on load: a second resume skips too few."""

    skipped = 0

    def place(self) -> int:
        return self.skipped + self.position

    def current(self, index: int) -> Tensor:
        return torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(self.place())) + 0.01 * index

    def advance(self) -> None:
        self.position += 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self.position = state["position"], 0


class CountedWholeLoader(SecondResumeLoader):
    """Correct: count all batches, also those before the resume."""

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.place()}


class SecondResume(WithLoader):
    loader = SecondResumeLoader


class CountedWhole(WithLoader):
    loader = CountedWholeLoader


class EpochAgainLoader(Loader):
    """Repeat a finished epoch after a load, and not the epoch after it."""

    epoch = 0
    next_epoch = 0  # begun by the load of a finished one: 1 is right

    def current(self, index: int) -> Tensor:
        if self.position == EPOCH:
            self.epoch, self.position = self.epoch + 1, 0
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(self.epoch))
        return self.data[order[self.position * BATCH : (self.position + 1) * BATCH]] + 0.01 * index

    def advance(self) -> None:
        self.position += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        finished = state["position"] == EPOCH
        self.epoch = state["epoch"] + (self.next_epoch if finished else 0)
        self.position = 0 if finished else state["position"]


class NextEpochLoader(EpochAgainLoader):
    next_epoch = 1


class EpochAgain(WithLoader):
    loader = EpochAgainLoader


class NextEpoch(WithLoader):
    loader = NextEpochLoader


class WritesInAThread(Right):
    """Return before the file is written, and write the tensor values that exist after the next step."""

    stepped: threading.Event

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        function = super().build(workload, arm)
        self.stepped = threading.Event()

        def after() -> None:
            function.after()
            self.stepped.set()

        return replace(function, after=after)

    def save(self, path: Path) -> None:
        held = self.held(self.trainer.state_dict())
        stepped = self.stepped = threading.Event()

        def write() -> None:
            stepped.wait()
            torch.save(held, path)

        threading.Thread(target=write).start()

    def held(self, state: dict[str, Any]) -> dict[str, Any]:
        return state


class CopiesBeforeItWrites(WritesInAThread):
    """Correct: the thread writes copies, which no step changes."""

    def held(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name: _copied(value) for name, value in state.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


class WritesWithTheNextStep(ByIndex):
    """Write the checkpoint only after the next step."""

    pending: Path | None = None

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        function = super().build(workload, arm)

        def after() -> None:
            function.after()
            if self.pending is not None:
                path, self.pending = self.pending, None
                torch.save(self.trainer.state_dict(), path)

        return replace(function, after=after)

    def save(self, path: Path) -> None:
        self.pending = path


class SavesWhatItLoadedFrom(Right):
    """Bind new averages when loading, but continue to save the averages of the construction."""

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        function = super().build(workload, arm)
        self.saved = self.trainer.average
        return function

    def save(self, path: Path) -> None:
        torch.save({**self.trainer.state_dict(), "average": self.saved}, path)

    def load(self, path: Path) -> None:
        state = torch.load(path)
        average = state.pop("average")
        self.trainer.load_state_dict(state)
        self.trainer.average = average


class BindsBoth(SavesWhatItLoadedFrom):
    """Correct: the next save writes the tensors that the step changes."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.saved = self.trainer.average
