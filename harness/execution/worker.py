"""Run the worker process: wait for a run on standard input, execute it, and write its evidence into its directory.

The process is started as `python -m harness.execution.worker [--ahead]`. With `--ahead` it imports torch while it waits
for a run, and uses no device. The last record of complete evidence is `complete`. If this record is missing, the
process that started the worker records why the worker ended.
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
# Seconds for which a repetition of an arm waits before it begins. Programs often use the time in whole seconds as a
# seed. Without the wait, a repetition could get the same seed as the first execution of the arm.
LATER_S = 1.1
RAISED_EXIT = 70  # exit status of a worker whose run raised an error (EX_SOFTWARE of sysexits.h)
# The module below imports torch. Do not add `throughput` here, because importing it looks for a device.
_IMPORTED_AHEAD = ("harness.execution.probes.paired",)
_TORCH_IMPORTS_LATER = "torch._dynamo"  # torch imports this module at its first dispatch mode or fake tensor
# The name of a module that is imported only for a run with several ranks. A normal import would also load the module in
# the command's process, which imports this file, too.
_RANKS = "harness.execution.ranks"


class WorkerJob(Job):
    """A run, and the settings of the process that executes it. variables: environment variables to set. threads: number
    of host threads for torch and for libraries that read OMP_NUM_THREADS; None for the libraries' defaults."""

    variables: dict[str, str]
    baseline: ImportPath | None = None  # import path of the baseline's commit; None if all arms use the working tree
    # folder through which arms of two commits exchange tensors; None if there is only one commit
    exchange: str | None = None
    threads: int | None = None


def main() -> int:
    """Wait for a run and execute it. Return exit status 0 if the evidence is complete, and another status otherwise."""
    line = take_standard_input()
    if AHEAD in sys.argv[1:]:
        _import_ahead()
        line.send(f"{READY} {monotonic()}")
    message = line.receive(None)
    if not message:
        return 0  # there is no run for this process, so it ends
    job = WorkerJob.model_validate_json(message)
    os.environ.update(job.variables)
    if job.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(job.threads)  # libraries that are imported later read this variable
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(job.threads)
    leave_stacks(job.directory)
    exchange = None if job.exchange is None else Path(job.exchange)
    with Recorder(job.directory, line, exchange) as recorder:
        return _execute(job, recorder)


def _import_ahead() -> None:
    for module in _IMPORTED_AHEAD:
        # Ignore errors here. If the run needs the module, importing it again raises the same error.
        with suppress(Exception), _collector_off():
            importlib.import_module(module)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Switch the garbage collector off in the `with` block, which imports modules. The collector took a sixth of the
    time of these imports and freed nothing."""
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
    """Start the run's ranks, each in its own child process, and let them execute the run. Return the exit status."""
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
    if not probe.timed:  # in a timed arm, garbage must be collected as in the training itself
        # Garbage is collected after each arm, and the collector skips frozen objects. Freeze torch's many objects now,
        # so that each collection is faster.
        gc.freeze()
    execute(run, recorder)


if __name__ == "__main__":
    end_process(main())
