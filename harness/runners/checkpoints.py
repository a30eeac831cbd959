"""What an arm saves, and what it loads, with the records of both."""

from __future__ import annotations

import os

from harness.evidence.arm_records import Loaded, Saved
from harness.runners.checkpoint_folder import checkpoint_path, earlier_path, size_of
from harness.runners.paired import digests_of
from harness.runners.recorder import Recorder
from harness.runners.stretch import Stretch
from harness.system.protocol import NotAvailable, Resumes, TrainingRun


def save_checkpoint(training: TrainingRun, arm: str, replica: int, recorder: Recorder, *, steps: int) -> None:
    """Save what was trained over so many steps. Raises `NotAvailable` where the system cannot."""
    recorder.phase(f"{arm}.{replica}: save")
    path = checkpoint_path(recorder.directory)
    _resumes(training, arm).save(path)
    files, size = size_of(path)
    recorder.write(Saved(arm=arm, replica=replica, steps=steps, process=os.getpid(), files=files, bytes=size))


def save_earlier(training: TrainingRun, arm: str, replica: int, recorder: Recorder) -> None:
    """Save where nobody loads from, and train on: a trainer saves again and again. Raises `NotAvailable`, likewise.

    A saver that keeps what it saved first, and training that goes on otherwise for having been saved, show in what is
    loaded then, and in the steps between.
    """
    recorder.phase(f"{arm}.{replica}: save earlier")
    _resumes(training, arm).save(earlier_path(recorder.directory))
    recorder.phase(f"{arm}.{replica}: steps")


def load_checkpoint(
    training: TrainingRun, arm: str, replica: int, stretch: Stretch, recorder: Recorder, *, steps_before: int
) -> None:
    """Load what another process saved, after so many steps of this one. Raises `NotAvailable` where it cannot."""
    recorder.phase(f"{arm}.{replica}: load")
    trainable_before, _ = digests_of(training)
    _resumes(training, arm).load(checkpoint_path(recorder.directory))
    trainable_after, _ = digests_of(training)
    recorder.write(
        Loaded(
            arm=arm,
            replica=replica,
            process=os.getpid(),
            steps_before=steps_before,
            trainable_before=trainable_before,
            trainable_after=trainable_after,
            after=stretch.state(),
        )
    )


def _resumes(training: TrainingRun, arm: str) -> Resumes:
    if not isinstance(training, Resumes):
        raise NotAvailable(f"the system of arm {arm} lacks the capability `resume`")
    return training
