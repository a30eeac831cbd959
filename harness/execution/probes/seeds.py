"""Train every arm once with each seed, one after the other in one process (probes `seeds` and `resumed_seeds`).

With the probe `resumed_seeds`, the candidate's training is interrupted in the middle, for each seed. Each half of the
training has a separate process, so that the second half gets nothing but the checkpoint of the first half. For seed
number n (from 0), the candidate has the executions 2n (until the save) and 2n + 1 (from the load). Every other arm has
execution n.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from harness.evidence.plan_records import Run
from harness.evidence.run_records import ArmFailed
from harness.execution.arm import ArmLife
from harness.execution.job import remove_checkpoint
from harness.execution.opening import release_memory
from harness.execution.probes.between_steps import parts_of
from harness.execution.probes.paired import failure_of, train
from harness.execution.probes.training_part import train_elsewhere
from harness.execution.recorder import Recorder


def execute(run: Run, recorder: Recorder) -> None:
    """Execute the arms in the run's order, each arm with every seed. Execution n of an arm uses seed number n."""
    _execute(run, recorder, None)


def execute_resumed(run: Run, recorder: Recorder) -> None:
    """Train every arm with every seed. For each seed, the candidate's training is interrupted by a save and a load."""
    _execute(run, recorder, cast("str", run.settings["candidate"]))


def _execute(run: Run, recorder: Recorder, interrupted: str | None) -> None:
    """Execute the arms. After the first failure, record it and stop, because the claim needs all arms. interrupted: the
    arm whose training is interrupted; None if no training is."""
    for arm in run.arms:
        if arm == interrupted:
            failure = _interrupted_with_every_seed(run, arm, recorder)
        else:
            failure = failure_of(arm, recorder, partial(_train_with_every_seed, run, arm, recorder))
        if failure is not None:
            recorder.write(failure)
            # A CUDA error persists in the process. If the arm failed with a CUDA error, the call below raises it again,
            # and the worker ends.
            release_memory()
            return


def _train_with_every_seed(run: Run, arm: str, recorder: Recorder) -> None:
    """Train one arm with every seed, without interruption."""
    for replica, seed in enumerate(cast("list[int]", run.settings["seeds"])):
        seeded = run.model_copy(update={"workload": run.workload.model_copy(update={"seed": seed})})
        with ArmLife(seeded, arm, recorder, replica, facts={"seed": seed}) as life:
            train(life, {}, keep=False)


def _interrupted_with_every_seed(run: Run, arm: str, recorder: Recorder) -> ArmFailed | None:
    for place, seed in enumerate(cast("list[int]", run.settings["seeds"])):
        try:
            failure = train_elsewhere(parts_of(run, recorder, arm, 2 * place, seed=seed), recorder)
            if failure is not None:
                return failure
        finally:
            remove_checkpoint(recorder.directory)
    return None
