"""Recorded times of workers, for tests of the account of seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from run_builders import stand_in_run

from harness.evidence.plan_records import Run
from harness.evidence.read_run import ProcessTimes, WorkerTimes
from harness.evidence.run_records import Complete, Phase

STARTED = 1000.0  # when the process began, by the machine's clock
IMPORTED = 2.0  # seconds from there to the worker's first record


def run_named(name: str) -> Run:
    return stand_in_run("one_arm").model_copy(update={"id": name})


def old(*phases: tuple[str, float], end: float | None) -> WorkerTimes:
    """Return evidence without start times: phases with the second at which each began; end: None if it died."""
    records = [Phase(name=name, seconds=seconds) for name, seconds in phases]
    return WorkerTimes(run_named("old"), records, None if end is None else Complete(seconds=end), None)


def clocked(
    *phases: tuple[str, float],
    end: float | None,
    started: float = STARTED,
    ended: float,
    processor: float | None = None,
    stopped: Sequence[tuple[float, float]] = (),
    **process: Any,
) -> WorkerTimes:
    """Return phases, end and stops in seconds after the process's start; the first record comes after `IMPORTED`."""
    recorder = started + IMPORTED
    records = [Phase(name=name, seconds=max(at - IMPORTED, 0.0), began=started + at) for name, at in phases]
    complete = None if end is None else Complete(seconds=started + end - recorder, processor_seconds=processor)
    moments = {name: started + value if name != "gpu" else value for name, value in process.items()}
    stops = [(started + first, started + last) for first, last in stopped]
    times = ProcessTimes(started=started, ended=started + ended, stopped=stops, **moments)
    return WorkerTimes(run_named("new"), records, complete, times)
