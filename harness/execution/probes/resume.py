"""The resume probe: processes train an arm one after the other, each from what the one before it saved.

What lives in a process and in no checkpoint (module globals, iterators, generators, caches of torch) is
gone with its process. This one opens nothing before the others have ended. It loads the last save, and
executes the uninterrupted arm last, so that the resumed arm finds a process in which nothing was trained.

Executions of the candidate: one for each part of the training, and one more without interruption if the
claim names no other arm for that.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from harness.evidence.plan_records import Run
from harness.execution.arm import ArmLife
from harness.execution.job import name_of
from harness.execution.probes.checkpoint_folder import remove_checkpoint
from harness.execution.probes.checkpoints import load_checkpoint
from harness.execution.probes.training_part import TrainingPart, train_elsewhere
from harness.execution.recorder import Recorder
from harness.execution.watchers.state_watch import Ends


def execute(run: Run, recorder: Recorder) -> None:
    """Save the candidate, resume it, and train the uninterrupted arm. No checkpoint is left at the end."""
    arm, baseline, ends = str(run.settings["candidate"]), run.settings["baseline"], Ends()
    *elsewhere, last = parts_of(run, recorder, arm)
    try:
        failure = train_elsewhere(elsewhere, recorder)
        if failure is not None:  # what it would be compared with is worth nothing without it
            recorder.write(failure)
            return
        _resume(run, last, recorder, ends)
    finally:
        remove_checkpoint(recorder.directory)
    if baseline is None:
        _train_on(run, arm, last.replica + 1, recorder, ends)
    else:
        _train_on(run, str(baseline), 0, recorder, ends)


def parts_of(run: Run, recorder: Recorder, arm: str, first_replica: int = 0, **more: int) -> list[TrainingPart]:
    """Return the parts of a training that is saved as the run's `save_at` says, numbered from `first_replica`."""
    at = run.settings["save_at"]
    bounds = [0, *(cast("list[int]", at) if isinstance(at, list) else [int(str(at))]), run.workload.steps]
    folder = name_of(recorder.directory)
    return [
        TrainingPart(folder=folder, arm=arm, replica=first_replica + place, first=first, until=until, **more)
        for place, (first, until) in enumerate(pairwise(bounds))
    ]


def _resume(run: Run, part: TrainingPart, recorder: Recorder, ends: Ends) -> None:
    before = int(str(run.settings["steps_before_load"]))
    with ArmLife(run, part.arm, recorder, part.replica, ends=ends) as life:
        life.start()
        life.phase("steps before the load")
        for index in range(before):
            life.training.step(index)
        load_checkpoint(life, steps=part.first, steps_before=before)
        life.train_on(range(part.first, part.until))


def _train_on(run: Run, arm: str, replica: int, recorder: Recorder, ends: Ends) -> None:
    with ArmLife(run, arm, recorder, replica, ends=ends) as life:
        life.train(range(run.workload.steps))
