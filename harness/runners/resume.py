"""The resume probe: one process trains an arm, saves and ends; this one opens the arm anew, loads, and goes on.

What lives in a process and in no checkpoint (module globals, iterators, generators, caches of torch) is gone with the
first process. This one opens nothing before that has ended, and executes the uninterrupted arm last: an arm that is
resumed finds a process in which nothing was trained.

Executions of the candidate: 0 up to the save, 1 from the load on, and 2 without interruption where the claim names no
other arm for that.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from harness.evidence.arm_records import Loaded
from harness.evidence.base import Cause
from harness.evidence.plan_records import Run
from harness.evidence.run_records import ArmFailed
from harness.python_path import child_command
from harness.runners.checkpoint_folder import checkpoint_path, remove_checkpoint
from harness.runners.folders import without_folders
from harness.runners.line import pair
from harness.runners.opening import opened
from harness.runners.paired import digests_of
from harness.runners.recorder import HEARTBEAT, Recorder
from harness.runners.saving_process import SAVED, Saving, SavingAnswer, saves
from harness.runners.state_watch import Ends
from harness.runners.stretch import Stretch
from harness.runners.worker import STACKS

RESUMED, UNINTERRUPTED = 1, 2
STACK_EXCERPT = 8000  # characters


def execute(run: Run, recorder: Recorder) -> None:
    """Let the candidate be saved, resume it, and train the uninterrupted arm. Nothing of the checkpoint is left."""
    arm = str(run.settings["candidate"])
    try:
        failure = _saved_elsewhere(arm, recorder)
        if failure is not None:  # what it would be compared with is worth nothing without it
            recorder.write(failure)
            return
        ends = Ends()
        _resume(run, arm, recorder, ends)
    finally:
        remove_checkpoint(recorder.directory)
    baseline = run.settings["baseline"]
    _train_on(run, arm if baseline is None else str(baseline), UNINTERRUPTED if baseline is None else 0, recorder, ends)


def _saved_elsewhere(arm: str, recorder: Recorder) -> ArmFailed | None:
    """Wait for the process that trains and saves; how the arm failed in it, None when it saved."""
    recorder.phase(f"{arm}.{SAVED}: start the process that saves")
    line, theirs = pair()
    with theirs:
        process = subprocess.Popen(child_command("harness.runners.saving_process"), stdin=theirs.fileno())
    try:
        line.send(Saving(folder=os.fsencode(recorder.directory.resolve()).hex(), arm=arm).model_dump_json())
        message = line.receive(None)
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        line.close()
    answer = SavingAnswer.model_validate_json(message) if message else SavingAnswer()
    phase = _last_phase(recorder)
    if answer.failed is not None:
        return ArmFailed(
            arm=arm, cause="exception", detail=answer.failed, phase=phase, stack=answer.stack, obstacle=answer.obstacle
        )
    if message and code == 0:
        return None
    cause, detail = _ending(code)
    return ArmFailed(arm=arm, cause=cause, detail=detail, phase=phase, stack=_stack(recorder.directory))


def _ending(code: int) -> tuple[Cause, str]:
    if code >= 0:
        return "exit_code", f"the process that was to save ended with exit status {code} before it had saved"
    name = f"signal {-code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return "signal", f"the process that was to save ended by {name}"


def _last_phase(recorder: Recorder) -> str:
    """Where that process was; its own recorder wrote it over this one's."""
    with suppress(OSError):
        return (recorder.directory / HEARTBEAT).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    return recorder.current_phase


def _stack(directory: Path) -> str:
    """What faulthandler left of a process that a signal ended."""
    with suppress(OSError):
        return without_folders((directory / STACKS).read_text(encoding="utf-8", errors="replace"))[-STACK_EXCERPT:]
    return ""


def _resume(run: Run, arm: str, recorder: Recorder, ends: Ends) -> None:
    at, before = int(str(run.settings["save_at"])), int(str(run.settings["steps_before_load"]))
    recorder.phase(f"{arm}.{RESUMED}: open")
    with opened(run, arm) as training:
        stretch = Stretch(run, arm, RESUMED, training, recorder)
        recorder.phase(f"{arm}.{RESUMED}: steps before the load")
        for index in range(before):
            training.step(index)
        recorder.phase(f"{arm}.{RESUMED}: load")
        trainable_before, _ = digests_of(training)
        saves(training, arm).load(checkpoint_path(recorder.directory))
        trainable_after, _ = digests_of(training)
        recorder.write(
            Loaded(
                arm=arm,
                replica=RESUMED,
                process=os.getpid(),
                steps_before=before,
                trainable_before=trainable_before,
                trainable_after=trainable_after,
                after=stretch.state(),
            )
        )
        stretch.steps(range(at, run.workload.steps))
        stretch.end(ends)


def _train_on(run: Run, arm: str, replica: int, recorder: Recorder, ends: Ends) -> None:
    recorder.phase(f"{arm}.{replica}: open")
    with opened(run, arm) as training:
        stretch = Stretch(run, arm, replica, training, recorder)
        stretch.steps(range(run.workload.steps))
        stretch.end(ends)
