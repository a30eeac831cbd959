"""The resume probe: one process trains an arm, saves and ends; this one opens the arm anew, loads, and goes on.

What lives in a process and in no checkpoint (module globals, iterators, generators, caches of torch) is gone with the
first process. This one opens nothing before that has ended, and executes the uninterrupted arm last: an arm that is
resumed finds a process in which nothing was trained.

Executions of the candidate: 0 up to the save, 1 from the load on, and 2 without interruption where the claim names no
other arm for that.
"""

from __future__ import annotations

from harness.evidence.plan_records import Run
from harness.runners.arm_life import ArmLife
from harness.runners.checkpoint_folder import remove_checkpoint
from harness.runners.checkpoints import load_checkpoint
from harness.runners.job import name_of
from harness.runners.recorder import Recorder
from harness.runners.state_watch import Ends
from harness.runners.training_part import TrainingPart, train_elsewhere

SAVED, RESUMED, UNINTERRUPTED = 0, 1, 2


def execute(run: Run, recorder: Recorder) -> None:
    """Let the candidate be saved, resume it, and train the uninterrupted arm. Nothing of the checkpoint is left."""
    arm, at = str(run.settings["candidate"]), int(str(run.settings["save_at"]))
    try:
        part = TrainingPart(folder=name_of(recorder.directory), arm=arm, replica=SAVED, until=at)
        failure = train_elsewhere(part, recorder)
        if failure is not None:  # what it would be compared with is worth nothing without it
            recorder.write(failure)
            return
        ends = Ends()
        _resume(run, arm, at, recorder, ends)
    finally:
        remove_checkpoint(recorder.directory)
    baseline = run.settings["baseline"]
    _train_on(run, arm if baseline is None else str(baseline), UNINTERRUPTED if baseline is None else 0, recorder, ends)


def _resume(run: Run, arm: str, at: int, recorder: Recorder, ends: Ends) -> None:
    before = int(str(run.settings["steps_before_load"]))
    with ArmLife(run, arm, recorder, RESUMED, ends=ends) as life:
        life.start()
        life.phase("steps before the load")
        for index in range(before):
            life.training.step(index)
        load_checkpoint(life, steps_before=before)
        life.train_on(range(at, run.workload.steps))


def _train_on(run: Run, arm: str, replica: int, recorder: Recorder, ends: Ends) -> None:
    with ArmLife(run, arm, recorder, replica, ends=ends) as life:
        life.train(range(run.workload.steps))
