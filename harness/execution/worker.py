"""Run the worker process: wait for a run on standard input, and write its evidence into the run's directory.

The supervisor starts this module as `python -m harness.execution.worker [--ahead]`, as a session leader under a keeper.
With `--ahead` it imports torch while it waits, and touches no device. Its last record is `complete`. If this record is
missing, the supervisor finds and records the cause.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from harness.commits.import_path import ImportPath
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Raised, Unavailable
from harness.execution.job import Job, end_process, leave_stacks
from harness.execution.recorder import Recorder
from harness.kinds import imported, probe_named
from harness.processes.child import READY, take_standard_input
from harness.system.protocol import NotAvailable
from harness.system.users_code import message_of, obstacle_of, stack_of

AHEAD = "--ahead"
# seconds by which a repetition begins later than the first run, because seeds are often made from the clock's second
LATER_S = 1.1
RAISED_EXIT = 70  # the exit status EX_SOFTWARE of sysexits.h
# this module imports torch; do not list `throughput`, which would look for a device
_IMPORTED_AHEAD = ("harness.execution.probes.paired",)
_TORCH_IMPORTS_LATER = "torch._dynamo"  # torch imports this module at its first dispatch mode or fake tensor
# only the name: the module is imported later, because the command's own process imports this module, too
_RANKS = "harness.execution.ranks"


class WorkerJob(Job):
    """A run, and the settings of its process.

    threads: host threads of torch and of libraries that read OMP_NUM_THREADS; None to use their own defaults.
    """

    variables: dict[str, str]
    baseline: ImportPath | None = None  # import path for the modules of arms that use a commit; None: no arm does
    # folder of tensors that arms of one commit leave for arms of the other commit; None: there is only one commit
    exchange: str | None = None
    threads: int | None = None


def main() -> int:
    """Execute the run. Return exit status 0 exactly when the evidence is complete."""
    line = take_standard_input()
    if AHEAD in sys.argv[1:]:
        _import_ahead()
        line.send(f"{READY} {monotonic()}")
    message = line.receive(None)
    if not message:
        return 0  # the supervisor has no run for this process, so end it
    job = WorkerJob.model_validate_json(message)
    os.environ.update(job.variables)
    if job.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(job.threads)  # also set the variable, for modules that are imported later
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(job.threads)
    leave_stacks(job.directory)
    exchange = None if job.exchange is None else Path(job.exchange)
    with Recorder(job.directory, line, exchange) as recorder:
        return _execute(job, recorder)


def _import_ahead() -> None:
    for module in _IMPORTED_AHEAD:
        # if a run needs the module, its import raises the same error again there
        with suppress(Exception), _collector_off():
            importlib.import_module(module)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Switch the garbage collector off in the block: during imports it took a sixth of the time and freed nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _execute(job: WorkerJob, recorder: Recorder) -> int:
    try:
        recorder.phase("start")
        run = job.run()
        if run.repeats:
            sleep(LATER_S)
        if run.ranks > 1:
            return _watch_ranks(run, recorder, job.threads)
        if job.baseline is None or run.commits == {None}:
            _probe(run, recorder)
        elif len(run.commits) == 1:
            job.baseline.use()
            _probe(run, recorder)
        else:
            imported(str(probe_named(run.probe).apart))(run, recorder, job.baseline)
    except NotAvailable as error:
        recorder.write(Unavailable(obstacle=obstacle_of(error)))
    except BaseException as error:  # user code may raise anything, also SystemExit
        recorder.write(Raised(error=message_of(error), stack=stack_of(error)))
        return RAISED_EXIT
    recorder.complete()
    return 0


def _watch_ranks(run: Run, recorder: Recorder, threads: int | None) -> int:
    """Let a run's ranks execute the run, each in its own child process. Return the exit status."""
    ranks = importlib.import_module(_RANKS)
    try:
        ranks.execute(run, recorder, threads)
    except ranks.RankEnded as ended:
        recorder.write(ended.record())
        return RAISED_EXIT
    recorder.complete()
    return 0


def _probe(run: Run, recorder: Recorder) -> None:
    probe = probe_named(run.probe)
    recorder.phase(f"import {probe.execute.partition(':')[0]}")
    captures = any(planned.arm.capture != "none" for planned in run.arms.values())
    with _collector_off():
        execute = imported(probe.execute)
        if "torch" in sys.modules and probe.watches_steps and captures:
            importlib.import_module(_TORCH_IMPORTS_LATER)
    if not probe.timed:  # in a timed arm the garbage collector must work as in production
        # the collection after each arm skips frozen objects; torch's many objects would make it slow
        gc.freeze()
    execute(run, recorder)


if __name__ == "__main__":
    end_process(main())
