"""Do something between an arm's steps: save and load it in other processes (`resume`), or evaluate it (`evaluation`).

In resume processes train an arm one after the other, each from what the one before it saved. What lives in a process
and in no checkpoint (module globals, iterators, generators, caches of torch) is gone with its process. This one opens
nothing before the others have ended. It loads the last save, and executes the uninterrupted arm last, so that the
resumed arm finds a process in which nothing was trained. Executions of the candidate: one for each part of the
training, and one more without interruption if the claim names no other arm for that.

In evaluation an arm trains once without evaluations, and once with one after every `every` steps. A plain arm, if the
claim names one, trains with evaluations only. Executions of the candidate: 0 without, 1 with them. Digests of the state
around each evaluation show what it changed where no loss does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from hashlib import sha256
from itertools import pairwise
from typing import cast

from harness.evidence.arm_records import Evaluated
from harness.evidence.plan_records import Run
from harness.execution.arm import ArmLife
from harness.execution.job import name_of, remove_checkpoint
from harness.execution.probes.checkpoints import load_checkpoint
from harness.execution.probes.training_part import TrainingPart, train_elsewhere
from harness.execution.recorder import Recorder
from harness.execution.watchers.loose_watch import LOOSE
from harness.execution.watchers.reductions import digests
from harness.execution.watchers.state_watch import Ends, watched_state
from harness.system.adapter_checks import require_values
from harness.system.protocol import Evaluates, NotAvailable, TrainingRun


def execute_resume(run: Run, recorder: Recorder) -> None:
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


WITHOUT, WITH = 0, 1
NAMED = 20  # changed tensors, at most


def execute_evaluation(run: Run, recorder: Recorder) -> None:
    """Train the candidate twice, and the plain arm once."""
    arm, plain, ends = str(run.settings["candidate"]), run.settings.get("plain"), Ends()
    _train(run, arm, WITHOUT, recorder, ends, evaluated=False)
    _train(run, arm, WITH, recorder, ends, evaluated=True)
    if plain is not None:
        _train(run, str(plain), 0, recorder, ends, evaluated=True)


def _train(run: Run, arm: str, replica: int, recorder: Recorder, ends: Ends, *, evaluated: bool) -> None:
    with ArmLife(run, arm, recorder, replica, ends=ends) as life:
        between = _Evaluations(life, int(str(run.settings["every"])))
        life.train(range(run.workload.steps), *([between.after] if evaluated else []))


class _Evaluations:
    def __init__(self, life: ArmLife, every: int) -> None:
        if not isinstance(life.training, Evaluates):
            raise NotAvailable(f"the system of arm {life.arm} lacks the capability `evaluate`")
        self._life, self._evaluates, self._every = life, life.training, every

    def after(self, steps: int) -> None:
        """Evaluate, if it is time. steps: how many steps were made."""
        if steps % self._every:
            return
        before = _state_digests(self._life.training)
        followed = self._life.state.steps
        with followed.evaluation() if followed else nullcontext():
            values = require_values(self._evaluates.evaluate(), self._evaluates.evaluate)
        after = _state_digests(self._life.training)
        changed = [
            f"{category} {name}"
            for category, names in before.items()
            for name, digest in names.items()
            if after.get(category, {}).get(name) != digest
        ]
        self._life.recorder.write(
            Evaluated(
                arm=self._life.arm,
                replica=self._life.replica,
                steps=steps,
                values=values,
                before={category: _of_category(names, names) for category, names in before.items()},
                # what came with the evaluation, a device's generator say, was not there to be changed
                after={category: _of_category(after.get(category, {}), names) for category, names in before.items()},
                changed=changed[:NAMED],
            )
        )


def _state_digests(training: TrainingRun) -> dict[str, dict[str, str]]:
    """Return digests by category and name. Loose tensors are left to the end: a later step may read them."""
    state = watched_state(training)
    return {category: digests(tensors) for category, tensors in state.items() if category != LOOSE and tensors}


def _of_category(found: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Return one digest of the digests of the named tensors."""
    return sha256(" ".join(found.get(name, "gone") for name in sorted(names)).encode()).hexdigest()[:32]
