"""Run every shard once, as a job. An interruption ends the jobs under way, and they keep their evidence."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from harness.api import session
from harness.errors import EvidenceError, ExitCode, UsageError
from harness.extras.fleet import job as moved
from harness.extras.fleet.engines import JOBS, Engine
from harness.extras.fleet.job import OWNER, Outcome, Shard, ShardJob
from harness.processes.child import child_command
from harness.run_directory.bundle import unused
from harness.run_directory.places import made_folder, takes_nothing

if TYPE_CHECKING:
    from submitit import Job

WORST_FIRST = (ExitCode.ERROR, ExitCode.VIOLATED, ExitCode.UNDECIDED)  # of `harness drill`
RESULT_S = 15.0  # until the result of a job that has ended is seen on a shared folder
Ended = Callable[[Shard, str, Outcome | None], None]  # a shard, where it ran, and how it ended; None: without a result


def new_directory(reports: Path, name: str | None) -> Path:
    """Return the folder for the shards' run directories; the default name has the date and the machine in it."""
    if name is not None:
        return reports / name
    return unused(reports / f"{session.directory_name(datetime.now(tz=UTC), session.VerifyOptions())}-fleet")


def run_shards(
    shards: Sequence[Shard], engine: Engine, directory: Path, ended: Ended, passed_on: Sequence[str] = ()
) -> dict[str, int]:
    """Run every shard once, and return its exit code by name; 12 for a shard whose job ended without a result.

    Run directories, and the output as `NAME.txt`, go below `directory`, which must be new. KeyboardInterrupt, and
    SystemExit on SIGTERM, end the shards under way with SIGTERM, so that they keep what they recorded, and carry a note
    that says where; no other shard begins.
    """
    made_folder(directory.parent)
    try:
        directory.mkdir()
    except FileExistsError:
        raise UsageError("shards need a folder of their own", where=str(directory), got="one that exists") from None
    except OSError as error:
        raise takes_nothing(directory, error) from error
    shared = directory.resolve()
    waiting, codes = deque(shards), dict[str, int]()
    running: dict[tuple[str, ...], tuple[Shard, Job[Outcome]]] = {}
    with _submitter(shared, owned=engine.owned):
        try:
            while waiting or running:
                while waiting and (places := _places(waiting[0], engine.places, running)):
                    shard = waiting.popleft()
                    variables = engine.variables(places)
                    harness = tuple(child_command("harness"))
                    job = ShardJob(shard, harness, shared, tuple(passed_on), variables, owned=engine.owned)
                    running[places] = shard, engine.submit(job, shared / JOBS)
                time.sleep(engine.poll_s)
                under_way = engine.under_way([job for _, job in running.values()])
                for places, (shard, job) in list(running.items()):
                    if job.job_id not in under_way:
                        del running[places]
                        outcome = _outcome(job, 0.0 if engine.owned else RESULT_S)
                        codes[shard.name] = ExitCode.ERROR if outcome is None else outcome.code
                        ended(shard, ",".join(places) if engine.places else "", outcome)
        except BaseException as error:
            if not running and not codes:  # the first job was refused
                shutil.rmtree(directory)
                raise
            _end(engine, [job for _, job in running.values()])
            error.add_note(f"what the shards saw is kept in {directory}")
            raise
    return codes


def _places(shard: Shard, places: Sequence[str] | None, taken: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return where the shard runs: free places, one for each GPU, or all places if it needs more.

    Returns nothing while too few are free: no later shard overtakes it, or it would wait for all of them.
    """
    if places is None:
        return (shard.name,)  # in a queue
    free = [place for place in places if place not in set(chain.from_iterable(taken))]
    number = min(shard.gpus, len(places))
    return tuple(free[:number]) if len(free) >= number else ()


@contextmanager
def _submitter(directory: Path, *, owned: bool) -> Iterator[None]:
    """Hold the lock that shows owned jobs that their submitter is alive; remove its file at the end of the block."""
    import fcntl

    with (directory / OWNER).open("wb") as file:
        if owned:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    (directory / OWNER).unlink(missing_ok=True)


def _outcome(job: Job[Outcome], seconds: float) -> Outcome | None:
    """Return the result of a job that has ended, or None if it was killed, raised, or was cancelled."""
    until = time.monotonic() + seconds
    while not job.paths.result_pickle.exists():
        if time.monotonic() >= until:
            return None
        time.sleep(0.5)
        os.listdir(job.paths.folder)  # noqa: PTH208 - so that a network's file system looks again
    return None if job.exception() is not None else job.result()


def _end(engine: Engine, jobs: Sequence[Job[Outcome]]) -> None:
    """Send SIGTERM to each job, and wait until each has written its results."""
    for job in jobs:
        engine.end(job)
    while engine.under_way(jobs):
        time.sleep(engine.poll_s)


def run_directories(shards: Sequence[Shard], directory: Path) -> list[Path]:
    """Return the run directories of every shard. Raises EvidenceError if a shard left none."""
    found = {shard.name: moved.run_directories(directory / shard.name) for shard in shards}
    if missing := [name for name, paths in found.items() if not paths]:
        raise EvidenceError(
            "every shard leaves a run directory",
            where=str(directory),
            got=f"none of {', '.join(missing)}",
            remedy=f"see the output of each in NAME.txt, and of its job in {JOBS}",
        )
    return [path for paths in found.values() for path in paths]


def worst(codes: Iterable[int]) -> int:
    """Return the worst exit code of several drills; an unknown code counts as an error."""
    seen = {code if code in (*WORST_FIRST, ExitCode.HELD) else ExitCode.ERROR for code in codes}
    return next((code for code in WORST_FIRST if code in seen), ExitCode.HELD)
