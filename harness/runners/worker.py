"""The worker process: one Run as JSON on stdin, its evidence into the directory named by the first argument.

Started by the supervisor as `python -m harness.runners.worker DIRECTORY`, as a session leader. It writes its
`complete` record last; whatever else happens, the supervisor sees and names it.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
from pathlib import Path

from harness.evidence.plan_records import Run
from harness.evidence.run_records import Complete, Raised, Unavailable
from harness.runners.raised import message_of, obstacle_of, stack_of
from harness.runners.recorder import Recorder
from harness.system.protocol import NotAvailable

STACKS = "stack.txt"
RAISED_EXIT = 70  # EX_SOFTWARE of sysexits.h


def main() -> int:
    """Execute the run; the exit status is 0 exactly when the evidence is complete."""
    directory = Path(sys.argv[1])
    # open until the process ends: faulthandler writes to it from signal handlers
    stacks = (directory / STACKS).open("w", encoding="utf-8")
    faulthandler.enable(stacks)
    # a hanging worker gets SIGTERM first: it leaves its stack, then the default action ends it
    faulthandler.register(signal.SIGTERM, stacks, chain=True)
    with Recorder(directory) as recorder:
        return _execute(recorder)


def _execute(recorder: Recorder) -> int:
    try:
        recorder.phase("start")
        run = Run.model_validate_json(sys.stdin.read())
        recorder.phase(f"import harness.runners.{run.probe}")
        importlib.import_module(f"harness.runners.{run.probe}").execute(run, recorder)
    except NotAvailable as error:
        recorder.write(Unavailable(obstacle=obstacle_of(error)))
    except BaseException as error:  # a system may raise anything, SystemExit included
        recorder.write(Raised(error=message_of(error), stack=stack_of(error)))
        return RAISED_EXIT
    recorder.write(Complete(seconds=recorder.seconds()))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # the evidence is on disk; a crash while CUDA tears down must not void it
    os._exit(status)
