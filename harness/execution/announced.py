"""Announce to an arm, each time that it is opened, how many steps its probe asks of it at most.

A trainer plans for them with a learning-rate schedule or an iterator over data. One step more is another
training, or an error. So the system is opened with this number, and no opened run can be called more often until the
arm has ended and is recorded.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from harness.evidence.plan_records import Run
from harness.execution import rank_seat
from harness.kinds import probe_named, resolve
from harness.system.faulty_run import FaultyRun
from harness.system.protocol import TrainingRun

if TYPE_CHECKING:
    from torch import Tensor

ROUNDS = 2  # of the workload's shapes: a second step of a shape must need no kernel that the first did not
ROUNDS_PER_AFTER = 4  # the judge compares the last `after` samples with those that follow the first `after`
WARMUP_STEPS = 10  # of each arm of a timing
TIMED_WATCHED_STEPS = 5  # of each, behind the timed ones
REPLAY_ROUNDS = 24  # of a long replay's old run and a fresh one: a median's interval leaves out five on each side
REPLAY_BLOCK_STEPS = 10  # at least
MOST_ROUNDS = 2  # times as many as are demanded: where something else works on the processor, for what that spoils


def announced_steps(run: Run) -> int | None:
    """Return how many steps the run's probe asks of an opened arm at most; None if time alone ends it."""
    steps = probe_named(run.probe).steps
    return None if steps is None else max(resolve(steps)(run), run.workload.steps)


def of_workload(run: Run) -> int:
    return run.workload.steps


def of_timing(run: Run) -> int:
    blocks = 2 * MOST_ROUNDS * (count_setting(run, "blocks") // 2)
    return WARMUP_STEPS + blocks * count_setting(run, "block_steps") + TIMED_WATCHED_STEPS


def of_long_replay(run: Run) -> int:
    return max(run.workload.steps, WARMUP_STEPS) + 2 * REPLAY_ROUNDS * replay_block_steps(run)


def replay_block_steps(run: Run) -> int:
    """Return how many steps a block of a long replay's turns has: every shape as often, wherever it begins."""
    shapes = shapes_of(run)
    return shapes * -(-REPLAY_BLOCK_STEPS // shapes)


def of_captures(run: Run) -> int:
    return captures_of(run, shapes_of(run))


def of_shapes(run: Run) -> int:
    """Return how many steps take every shape twice, after the warm steps of a captured arm."""
    return shapes_of(run) * ROUNDS + max(planned.arm.warm_steps for planned in run.arms.values())


def shapes_of(run: Run) -> int:
    """Return how many steps take every shape of the workload once."""
    return len(run.workload.seq_len) if isinstance(run.workload.seq_len, list) else 1


def captures_of(run: Run, shapes: int) -> int:
    """Return how many captures to make: whole rounds of the shapes, and at least four times `after`."""
    rounds = max(ROUNDS_PER_AFTER, -(-ROUNDS_PER_AFTER * count_setting(run, "after") // shapes))
    return rounds * shapes


def count_setting(run: Run, name: str) -> int:
    """Return a whole number among the run's settings. Raises TypeError if the setting is anything else."""
    value = run.settings[name]
    if not isinstance(value, int):
        raise TypeError(f"the setting {name!r} of a {run.probe} run is a number, not {value!r}")
    return value


class UnannouncedStepError(Exception):
    """The harness asked an arm for more steps than it had announced: a defect of the harness."""


class AnnouncedSteps(FaultyRun):
    """No fault: a run that counts its steps against the announced number, and notes each for the ranks' watcher.

    A run that is loaded or restarted begins to count anew, as its trainer does.
    """

    def __init__(self, inner: TrainingRun, announced: int | None) -> None:
        self._announced, self._begun = announced, 0
        super().__init__(inner, announced or 0)

    def _replace_capabilities(self) -> None:
        step = self._inner.step

        @functools.wraps(step)  # what is said of the system's own step names its place
        def counted(index: int) -> Tensor:
            self._begun += 1
            if self._announced is not None and self._begun > self._announced:
                raise UnannouncedStepError(f"the harness announced {self._announced} steps and asks for step {index}")
            rank_seat.note_step()
            return step(index)

        self.step = counted  # type: ignore[method-assign]
        for name in ("load", "restart"):
            if hasattr(self, name):
                setattr(self, name, self._anew(name))

    def once_more(self, index: int) -> Tensor:
        """Make a step that was not announced, once the arm has ended. The system may refuse it."""
        return self._inner.step(index)

    def _anew(self, name: str) -> object:
        begin = getattr(self._inner, name)

        @functools.wraps(begin)
        def begin_anew(start: Path | int) -> None:
            begin(start)
            self._begun = 0

        return begin_anew
