"""The seeds probe: every arm trains once with each seed, in one process, as in a paired run."""

from __future__ import annotations

from functools import partial
from typing import cast

from harness.evidence.plan_records import Run
from harness.runners.arm_life import ArmLife
from harness.runners.opening import release_memory
from harness.runners.paired import failure_of, train
from harness.runners.recorder import Recorder


def execute(run: Run, recorder: Recorder) -> None:
    """Execute the arms in the run's order, each with every seed; its replicas are the seeds in their order.

    An arm that fails is recorded, and nothing after it is executed: the claim names them all.
    """
    for arm in run.arms:
        failure = failure_of(arm, recorder, partial(train_with_every_seed, run, arm, recorder))
        if failure is not None:
            recorder.write(failure)
            release_memory()  # a CUDA error is sticky: it is raised again here, and the worker ends
            return


def train_with_every_seed(run: Run, arm: str, recorder: Recorder) -> None:
    """One arm, without interruption."""
    for replica, seed in enumerate(cast("list[int]", run.settings["seeds"])):
        seeded = run.model_copy(update={"workload": run.workload.model_copy(update={"seed": seed})})
        with ArmLife(seeded, arm, recorder, replica, facts={"seed": seed}) as life:
            train(life, {}, keep=False)
