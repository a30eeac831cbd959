"""The steps that an arm is announced: as many as a probe asks of it at most, each time that it is opened.

A trainer plans for them: a schedule of learning rates, an iterator over data. One step more is another training, or
an error. So the system is opened with this number, and no opened run can be called more often.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.evidence.plan_records import Run
from harness.runners import rank_seat
from harness.system.faulty_run import FaultyRun
from harness.system.protocol import TrainingRun

if TYPE_CHECKING:
    from torch import Tensor


def announced_steps(run: Run) -> int | None:
    """Return how many steps the run's probe asks of an opened arm at most; None where time alone ends it."""
    # probes import torch, and so do none of these functions before they are called
    match run.probe:
        case "steady":
            return None
        case "throughput":
            from harness.runners.timed_arm import WARMUP_STEPS, WATCHED_STEPS
            from harness.runners.timed_rounds import MOST_ROUNDS, count_setting

            blocks = 2 * MOST_ROUNDS * (count_setting(run, "blocks") // 2)
            own = WARMUP_STEPS + blocks * count_setting(run, "block_steps") + WATCHED_STEPS
        case "recapture":
            from harness.runners.kernels import shapes_of
            from harness.runners.recapture import captures_of

            own = captures_of(run, shapes_of(run))
        case "kernels" | "prewarm":
            from harness.runners.kernels import ROUNDS, shapes_of

            own = shapes_of(run) * ROUNDS
        case _:
            own = 0
    return max(own, run.workload.steps)


class UnannouncedStepError(Exception):
    """The harness asked an arm for more steps than it had announced: a defect of the harness."""


class AnnouncedSteps(FaultyRun):
    """No fault: a run that counts its steps against the announced number, and notes each for whoever watches ranks.

    A run that is loaded or restarted begins to count anew, as its trainer does.
    """

    def __init__(self, inner: TrainingRun, announced: int | None) -> None:
        self._announced, self._begun = announced, 0
        super().__init__(inner, announced or 0)

    def step(self, index: int) -> Tensor:
        self._begun += 1
        if self._announced is not None and self._begun > self._announced:
            raise UnannouncedStepError(f"the harness announced {self._announced} steps and asks for step {index}")
        rank_seat.note_step()
        return self._inner.step(index)

    def _replace_capabilities(self) -> None:
        for name in ("load", "restart"):
            if hasattr(self, name):
                setattr(self, name, self._anew(name))

    def _anew(self, name: str) -> object:
        begin = getattr(self._inner, name)

        def begin_anew(start: Path | int) -> None:
            begin(start)
            self._begun = 0

        return begin_anew
