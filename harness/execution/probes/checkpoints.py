"""Save and load an arm's checkpoints, and record each save and load."""

from __future__ import annotations

import os

from harness.evidence.arm_records import Loaded, Saved
from harness.execution.arm import ArmLife, digests_of
from harness.execution.job import checkpoint_path, size_of
from harness.system.protocol import NotAvailable, Resumes


def save(life: ArmLife, *, steps: int) -> None:
    """Save a checkpoint of the arm after `steps` steps. Raises `NotAvailable` if the arm's system cannot save."""
    _resumes(life).save(checkpoint_path(life.recorder.directory, steps))


def record_saved(life: ArmLife, *, steps: int, steps_after: int) -> None:
    """Record the checkpoint that was saved after `steps` steps. Call this function when no thread writes to the
    checkpoint any more. steps_after: number of steps that this process made after the save."""
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
    """Load the checkpoint that another process saved after `steps` steps, and record the load.

    steps_before: number of steps that this process made before the load. The load must undo the effect of these steps.
    Raises `NotAvailable` if the arm's system cannot load.
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
