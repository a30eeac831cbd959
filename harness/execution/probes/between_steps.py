"""Interrupt an arm's training by saves and loads (probe `resume`), or evaluate the model between steps (`evaluation`).

resume: several processes train the candidate one after the other, each from the checkpoint of the previous one. State
that no checkpoint contains (module globals, iterators, generators, caches of torch) is therefore lost. The worker
itself trains the last part. It opens the arm only after the other processes have ended, so that it has trained nothing
before. It makes the number of steps in the setting `steps_before_load`, and then loads the last checkpoint. Each part
of the training is one execution of the candidate. The last execution is a training without interruption: of the plain
arm, if the claim names one, and otherwise of the candidate.

evaluation: the candidate trains once without evaluations (execution 0), and once with an evaluation after every `every`
steps (execution 1). If the claim names a plain arm, the plain arm trains only with evaluations. Digests of the state
before and after each evaluation show whether an evaluation changed state, even if the losses stay equal.
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
    """Train the candidate with saves and loads, then without interruption. Remove the checkpoints at the end."""
    arm, baseline, ends = str(run.settings["candidate"]), run.settings["baseline"], Ends()
    *elsewhere, last = parts_of(run, recorder, arm)
    try:
        failure = train_elsewhere(elsewhere, recorder)
        if failure is not None:  # the interrupted training failed, so there is nothing to compare
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
    """Divide a training into parts, each for a process of its own. A part ends at each number of steps in the setting
    `save_at`, and at the end of the training.

    first_replica: number of the execution for the first part. more: other fields of each `TrainingPart`.
    """
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
NAMED = 20  # largest number of changed tensors whose names are recorded


def execute_evaluation(run: Run, recorder: Recorder) -> None:
    """Train the candidate without and with evaluations. If the claim names a plain arm, train it with evaluations."""
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
        """Evaluate if `steps`, the number of steps made so far, is a multiple of `every`. Record the values that the
        evaluation returned, and the state that it changed."""
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
                # Leave out state that did not exist before the evaluation, such as a device's random generator that the
                # evaluation used first.
                after={category: _of_category(after.get(category, {}), names) for category, names in before.items()},
                changed=changed[:NAMED],
            )
        )


def _state_digests(training: TrainingRun) -> dict[str, dict[str, str]]:
    """Return digests of the state, by category and name. Tensors that belong to no module or optimizer are left out,
    because they are compared only at the arm's end."""
    state = watched_state(training)
    return {category: digests(tensors) for category, tensors in state.items() if category != LOOSE and tensors}


def _of_category(found: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Return one digest for all tensors in `names`, combined from their digests in `found`."""
    return sha256(" ".join(found.get(name, "gone") for name in sorted(names)).encode()).hexdigest()[:32]
