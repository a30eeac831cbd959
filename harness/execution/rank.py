"""Execute a run as one of its ranks: `python -m harness.execution.rank`. Every rank executes all steps of its arms.

The process reads a `RankJob` from its standard input. It answers with a `RankAnswer` when it has executed the run, or
when the run raises an error. After the answer the process ends at once. Rank 0 writes its evidence into the run's
directory. Every other rank writes its evidence into a separate folder in this directory.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import NoReturn

from harness.evidence import layout
from harness.execution import rank_seat
from harness.execution.job import Answer, Job, end_process, leave, leave_stacks
from harness.execution.rank_seat import MARKS, Marks
from harness.execution.recorder import Recorder
from harness.kinds import imported, probe_named
from harness.numbers import Real
from harness.processes.child import take_standard_input

IMPORTED = "imported"


class RankJob(Job):
    """The job of one rank. port: port of the store (torch's `TCPStore`) through which the ranks find each other.
    threads: number of threads that torch uses; None for torch's default."""

    rank: int
    port: int
    threads: int | None


class RankAnswer(Answer):
    """The answer of one rank at its end. at: the time of this end, in seconds on the machine's monotonic clock."""

    at: Real


def folder_of(directory: Path, rank: int) -> Path:
    """Return the folder of a rank's evidence: for rank 0 the run's directory, for other ranks a folder in it."""
    return directory / layout.rank_name(rank) if rank else directory


def main() -> NoReturn:
    """Import torch, read the job, execute the run, answer, and end this process."""
    line = take_standard_input()
    # this imports torch while the parent process of the ranks creates their store (`TCPStore`)
    importlib.import_module("harness.execution.probes.paired")
    line.send(IMPORTED)
    message = line.receive(None)
    if not message:  # without a message, the process that started this rank has ended
        end_process(0)
    job = RankJob.model_validate_json(message)
    own = folder_of(job.directory, job.rank)
    leave_stacks(own)
    run = job.run()
    if job.threads is not None:
        sys.modules["torch"].set_num_threads(job.threads)
    marks = Marks(job.directory / f"{MARKS}.{job.rank}")
    rank_seat.take(rank_seat.Seat(job.rank, job.port, marks, lambda error: leave(line, _failure(error))))
    with Recorder(own, line if job.rank == 0 else None) as recorder:
        try:
            imported(probe_named(run.probe).execute)(run, recorder)
        except BaseException as error:  # user code may raise anything, also SystemExit
            leave(line, _failure(error))
        if job.rank:
            recorder.complete()
    leave(line, RankAnswer(at=time.monotonic()))


def _failure(error: BaseException) -> RankAnswer:
    return RankAnswer.of(error, at=time.monotonic())


if __name__ == "__main__":
    main()
