"""A part of a training in a process of its own, as the worker sees it that waits for it (`training_part.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from harness.evidence.base import Cause
from harness.evidence.run_records import ArmFailed
from harness.python_path import child_command
from harness.runners.folders import without_folders
from harness.runners.line import pair
from harness.runners.recorder import HEARTBEAT, Recorder
from harness.runners.stacks import STACKS
from harness.runners.training_part import PartAnswer, TrainingPart

STACK_EXCERPT = 8000  # characters


def folder_of(recorder: Recorder) -> str:
    """As a `TrainingPart` names the run's directory."""
    return os.fsencode(recorder.directory.resolve()).hex()


def train_elsewhere(part: TrainingPart, recorder: Recorder) -> ArmFailed | None:
    """Wait for the process that trains this part; how the arm failed in it, None when it came to its end."""
    recorder.phase(f"{part.arm}.{part.replica}: start a process for a part")
    line, theirs = pair()
    with theirs:
        process = subprocess.Popen(child_command("harness.runners.training_part"), stdin=theirs.fileno())
    try:
        line.send(part.model_dump_json())
        message = line.receive(None)
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        line.close()
    answer = PartAnswer.model_validate_json(message) if message else PartAnswer()
    phase = _last_phase(recorder)
    if answer.failed is not None:
        return ArmFailed(
            arm=part.arm,
            cause="exception",
            detail=answer.failed,
            phase=phase,
            stack=answer.stack,
            obstacle=answer.obstacle,
        )
    if message and code == 0:
        return None
    what = "the process that had loaded" if part.first else "the process that was to save"
    cause, detail = _ending(code)
    return ArmFailed(
        arm=part.arm, cause=cause, detail=f"{what} {detail}", phase=phase, stack=_stack(recorder.directory)
    )


def _ending(code: int) -> tuple[Cause, str]:
    if code >= 0:
        return "exit_code", f"ended with exit status {code} before it was done"
    name = f"signal {-code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return "signal", f"ended by {name}"


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
