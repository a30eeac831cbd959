"""What an arm saves, and what it loads, with the records of both."""

from __future__ import annotations

import os

from harness.evidence.arm_records import Loaded, Saved
from harness.execution.arm import ArmLife, digests_of
from harness.execution.probes.checkpoint_folder import checkpoint_path, size_of
from harness.system.protocol import NotAvailable, Resumes


def save(life: ArmLife, *, steps: int) -> None:
    """Save what was trained over so many steps. Raises `NotAvailable` where the system cannot."""
    _resumes(life).save(checkpoint_path(life.recorder.directory, steps))


def record_saved(life: ArmLife, *, steps: int, steps_after: int) -> None:
    """Record what was saved after so many steps, once nothing of this process writes to it any more."""
    files, size = size_of(checkpoint_path(life.recorder.directory, steps))
    life.recorder.write(
        Saved(
            arm=life.arm,
            replica=life.replica,
            steps=steps,
            process=os.getpid(),
            files=files,
            bytes=size,
            steps_after=steps_after,
        )
    )


def load_checkpoint(life: ArmLife, *, steps: int, steps_before: int) -> None:
    """Load what another process saved after so many steps; `steps_before` were made here, of which no trace may stay.

    Raises `NotAvailable` where the system cannot.
    """
    life.phase("load")
    trainable_before, _ = digests_of(life.training)
    _resumes(life).load(checkpoint_path(life.recorder.directory, steps))
    trainable_after, _ = digests_of(life.training)
    life.recorder.write(
        Loaded(
            arm=life.arm,
            replica=life.replica,
            process=os.getpid(),
            steps_before=steps_before,
            trainable_before=trainable_before,
            trainable_after=trainable_after,
            after=life.state.after_load(),
        )
    )


def _resumes(life: ArmLife) -> Resumes:
    if not isinstance(life.training, Resumes):
        raise NotAvailable(f"the system of arm {life.arm} lacks the capability `resume`")
    return life.training
