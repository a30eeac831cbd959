"""One rank of a run: `python -m harness.runners.rank`. It executes the whole run, as every other rank does.

It takes a `RankJob` from the line on its standard input, and answers with a `RankAnswer` when its part is complete or
an arm of several ranks raised; then it ends at once. Rank 0 writes into the run's directory, each other one into a
folder of its own there.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from harness.evidence import layout
from harness.evidence.base import Obstacle, Record
from harness.evidence.plan_records import Run
from harness.kinds import imported, probe_named
from harness.numbers import Real
from harness.runners import rank_seat
from harness.runners.line import Line, take_standard_input
from harness.runners.process_end import end_process
from harness.runners.raised import message_of, obstacle_of, stack_of
from harness.runners.rank_marks import MARKS, Marks
from harness.runners.recorder import Recorder
from harness.runners.stacks import leave_stacks
from harness.system.protocol import NotAvailable

IMPORTED = "imported"


class RankJob(Record):
    """folder: of the run's evidence, its path's bytes in hexadecimal; port: of the store that joins the ranks."""

    folder: str
    rank: int
    port: int
    threads: int | None


class RankAnswer(Record):
    """`failed` is an exception's message; None where this rank's part is complete. at: on the machine's clock."""

    at: Real
    failed: str | None = None
    stack: str = ""
    obstacle: Obstacle | None = None


def folder_of(directory: Path, rank: int) -> Path:
    """Where a rank's evidence goes, below the run's directory."""
    return directory / layout.rank_name(rank) if rank else directory


def main() -> NoReturn:
    """Import, take the job, execute the run, answer, end."""
    line = take_standard_input()
    importlib.import_module("harness.runners.paired")  # and with it torch, while the store is being made
    line.send(IMPORTED)
    message = line.receive(None)
    if not message:  # nobody watches it any more
        end_process(0)
    job = RankJob.model_validate_json(message)
    directory = Path(os.fsdecode(bytes.fromhex(job.folder)))
    own = folder_of(directory, job.rank)
    leave_stacks(own)
    run = Run.model_validate_json((directory / layout.RUN).read_bytes())
    if job.threads is not None:
        sys.modules["torch"].set_num_threads(job.threads)
    marks = Marks(directory / f"{MARKS}.{job.rank}")
    rank_seat.take(rank_seat.Seat(job.rank, job.port, marks, lambda error: _end(line, _failure(error))))
    with Recorder(own, line if job.rank == 0 else None) as recorder:
        try:
            imported(probe_named(run.probe).execute)(run, recorder)
        except BaseException as error:  # a system may raise anything, SystemExit included
            _end(line, _failure(error))
        if job.rank:
            recorder.complete()
    _end(line, RankAnswer(at=time.monotonic()))


def _failure(error: BaseException) -> RankAnswer:
    at = time.monotonic()
    if isinstance(error, NotAvailable):
        return RankAnswer(at=at, failed=message_of(error), obstacle=obstacle_of(error))
    return RankAnswer(at=at, failed=message_of(error), stack=stack_of(error))


def _end(line: Line, answer: RankAnswer) -> NoReturn:
    line.send(answer.model_dump_json())
    end_process(0)


if __name__ == "__main__":
    main()
