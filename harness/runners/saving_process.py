"""The process that trains an arm up to a step, saves it and ends: `python -m harness.runners.saving_process`.

It takes a `Saving` from the line on its standard input and answers with a `SavingAnswer`. Records and series it writes
itself into the run's directory: the worker that started it waits. It ends at once when the arm is saved, as a process
does that is stopped then: what `save` left to a thread, or to the interpreter's end, is lost.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import NoReturn

from harness.evidence import layout
from harness.evidence.arm_records import Saved
from harness.evidence.base import Obstacle, Record
from harness.evidence.plan_records import Run
from harness.runners.checkpoint_folder import checkpoint_path, size_of
from harness.runners.line import Line, take_standard_input
from harness.runners.raised import message_of, obstacle_of, stack_of
from harness.runners.recorder import Recorder
from harness.runners.worker import STACKS
from harness.system.protocol import NotAvailable, Resumes, TrainingRun

SAVED = 0  # the number of this execution of the arm


class Saving(Record):
    """folder: of the run's evidence, its path's bytes in hexadecimal."""

    folder: str
    arm: str


class SavingAnswer(Record):
    """`failed` is an exception's message; None where the arm is saved."""

    failed: str | None = None
    stack: str = ""
    obstacle: Obstacle | None = None


def main() -> NoReturn:
    """Train, save, answer, end."""
    line = take_standard_input()
    job = Saving.model_validate_json(line.receive(None) or "")
    directory = Path(os.fsdecode(bytes.fromhex(job.folder)))
    # open until the process ends: faulthandler writes to it from signal handlers
    faulthandler.enable((directory / STACKS).open("a", encoding="utf-8"))
    run = Run.model_validate_json((directory / layout.RUN).read_bytes())
    with Recorder(directory) as recorder:
        try:
            _train_and_save(run, job.arm, recorder, line)
        except NotAvailable as error:
            answer = SavingAnswer(failed=message_of(error), obstacle=obstacle_of(error))
        except BaseException as error:  # a system may raise anything, SystemExit included
            answer = SavingAnswer(failed=message_of(error), stack=stack_of(error))
    _end(line, answer)


def _end(line: Line, answer: SavingAnswer) -> NoReturn:
    line.send(answer.model_dump_json())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _train_and_save(run: Run, arm: str, recorder: Recorder, line: Line) -> NoReturn:
    # torch, and with it what the system needs
    from harness.runners.opening import opened
    from harness.runners.state_watch import Ends
    from harness.runners.stretch import Stretch

    steps = int(str(run.settings["save_at"]))
    recorder.phase(f"{arm}.{SAVED}: open")
    with opened(run, arm) as training:
        stretch = Stretch(run, arm, SAVED, training, recorder)
        stretch.steps(range(steps))
        stretch.end(Ends())
        recorder.phase(f"{arm}.{SAVED}: save")
        path = checkpoint_path(recorder.directory)
        saves(training, arm).save(path)
        files, size = size_of(path)
        recorder.write(Saved(arm=arm, replica=SAVED, steps=steps, process=os.getpid(), files=files, bytes=size))
        _end(line, SavingAnswer())  # before the arm is closed, which might yet write


def saves(training: TrainingRun, arm: str) -> Resumes:
    """The run of an arm; raises `NotAvailable` where it lacks the capability."""
    if not isinstance(training, Resumes):
        raise NotAvailable(f"the system of arm {arm} lacks the capability `resume`")
    return training


if __name__ == "__main__":
    main()
