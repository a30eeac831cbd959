"""What an arm saves, and what it loads, with the records of both."""

from __future__ import annotations

import os

from harness.evidence.arm_records import Loaded, Saved
from harness.runners.arm_life import ArmLife, digests_of
from harness.runners.checkpoint_folder import checkpoint_path, earlier_path, size_of
from harness.system.protocol import NotAvailable, Resumes


def save_checkpoint(life: ArmLife, *, steps: int) -> None:
    """Save what was trained over so many steps. Raises `NotAvailable` where the system cannot."""
    life.phase("save")
    path = checkpoint_path(life.recorder.directory)
    _resumes(life).save(path)
    files, size = size_of(path)
    saved = Saved(arm=life.arm, replica=life.replica, steps=steps, process=os.getpid(), files=files, bytes=size)
    life.recorder.write(saved)


def save_earlier(life: ArmLife) -> None:
    """Save where nobody loads from, and train on: a trainer saves again and again. Raises `NotAvailable`, likewise.

    A saver that keeps what it saved first, and training that goes on otherwise for having been saved, show in what is
    loaded then, and in the steps between.
    """
    life.phase("save earlier")
    _resumes(life).save(earlier_path(life.recorder.directory))
    life.phase("steps")


def load_checkpoint(life: ArmLife, *, steps_before: int) -> None:
    """Load what another process saved, after so many steps of this one. Raises `NotAvailable` where it cannot."""
    life.phase("load")
    trainable_before, _ = digests_of(life.training)
    _resumes(life).load(checkpoint_path(life.recorder.directory))
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
