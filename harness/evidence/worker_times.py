"""Read when a worker's process started, its phases and its end, for the account of seconds and not for judges."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, read_bytes, readable
from harness.evidence.lanes import lane_folders
from harness.evidence.plan_records import Run
from harness.evidence.records import parsed
from harness.evidence.run_records import Complete, Phase
from harness.numbers import Real

_OF_INTEREST = (b'"record":"phase"', b'"record":"complete"')  # as `dump_json` writes them


class ProcessTimes(Record):
    """`process.json`: a worker's process as its supervisor saw it, in seconds by the machine's monotonic clock.

    An interpreter that is started ahead is `ready` before it is `given_run`; the GPU is the run's from `given_run` on.
    """

    started: Real
    ended: Real
    given_run: Real | None = None  # None: when it was started
    ready: Real | None = None  # from here on it waited for its run; None: it did not wait
    asked_for_gpu: Real | None = None  # None: it asked for none, or had it already
    commit: str | None = None  # of the checkout when it was given the run; None: no checkout, or older evidence
    trained: list[str] = Field(default_factory=list)  # under --baseline the commits of the trees that its arms are of
    gpu: str | None = None  # UUID of the GPU that it held; None: none
    gpu_alone: bool | None = None  # whether no other run could hold that GPU meanwhile
    stopped: list[tuple[Real, Real]] = Field(default_factory=list)  # from SIGSTOP to SIGCONT


@dataclass(frozen=True)
class WorkerTimes:
    """One worker of a run. `process` is None where nothing was recorded of the process: older evidence."""

    run: Run
    phases: Sequence[Phase]
    complete: Complete | None
    process: ProcessTimes | None

    @property
    def clocked(self) -> bool:
        """Return True if all its times are by the machine's clock, which all runs of a directory share."""
        return self.process is not None and all(phase.began is not None for phase in self.phases)


def read_times(directory: Path) -> list[WorkerTimes]:
    """Return the workers of one run in order, from `evidence/<run id>/`, without those that left no readable run.

    For a run in lanes return the workers of each lane: no worker executed the whole run in addition to them.
    """
    try:
        folders = lane_folders(directory)
        earlier = sorted(directory.glob(f"{layout.ATTEMPT}*"), key=lambda path: (len(path.name), path.name))
    except OSError:  # a folder that this user may not read: that it is one is for the evidence to say
        return []
    if folders:
        return [times for folder in folders for times in read_times(folder)]
    return [times for folder in [*earlier, directory] if (times := _of_one(folder)) is not None]


def _of_one(directory: Path) -> WorkerTimes | None:
    run = readable(directory / layout.RUN, Run)
    if run is None:
        return None
    records = _records(directory / layout.RECORDS)
    return WorkerTimes(
        run,
        [record for record in records if isinstance(record, Phase)],
        next((record for record in records if isinstance(record, Complete)), None),
        readable(directory / layout.PROCESS, ProcessTimes),
    )


def _records(path: Path) -> list[Record]:
    """Return phases and the end. Other lines are not parsed, and a damaged or cut-off line is ignored."""
    try:
        lines = read_bytes(path).split(b"\n")
    except Damaged:
        return []
    records = []
    for line in lines:
        if any(mark in line for mark in _OF_INTEREST):
            with suppress(ValidationError, RecursionError, ValueError):
                records.append(parsed(line))
    return records
