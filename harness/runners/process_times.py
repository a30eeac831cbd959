"""What the supervisor writes of a worker's process: when it started, had its run, was stopped, and ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.evidence import layout
from harness.evidence.worker_times import ProcessTimes
from harness.numbers import dump_json


def write_process_times(
    directory: Path,
    *,
    started: float,
    ended: float,
    given_run: float | None = None,
    ready: float | None = None,
    asked_for_gpu: float | None = None,
    commit: str | None = None,
    trained: Sequence[str] = (),
    gpu: str | None = None,
    gpu_alone: bool | None = None,
    stopped: Sequence[tuple[float, float]] = (),
) -> None:
    """Write `process.json` into a run's directory, as `ProcessTimes` describes it; once for each worker, at its end.

    Moments are `time.monotonic()` of the supervisor.
    """
    times = ProcessTimes(
        started=started,
        ended=ended,
        given_run=given_run,
        ready=ready,
        asked_for_gpu=asked_for_gpu,
        commit=commit,
        trained=list(trained),
        gpu=gpu,
        gpu_alone=gpu_alone,
        stopped=list(stopped),
    )
    (directory / layout.PROCESS).write_text(dump_json(times.model_dump()) + "\n", encoding="utf-8")
