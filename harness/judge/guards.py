"""Guards: what must be true before a claim about training may pass. Unmet, they are FAIL, mostly `vacuous_…`.

They come after the difference itself: a real difference is reported as one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.contract.kinds.training import Guards, TrainingEffect
from harness.evidence.digest_column import distinct
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judge import reasons
from harness.judge.context import end_of, executed
from harness.judge.series import first_unequal, losses, require_finite
from harness.judge.sheet import Sheet, number, settle


def require_guards(guards: Guards, executions: Mapping[str, ArmEvidence], run: RunEvidence, sheet: Sheet) -> None:
    """Settle unless every guard holds for every named execution; the first one is the candidate."""
    candidate = next(iter(executions.values()))
    _require_steps(guards, candidate, sheet)
    for name, execution in executions.items():
        require_trained(name, execution)
    _require_distinct_batches(guards, candidate, sheet)
    if guards.clip_active_steps is not None:
        for name, execution in executions.items():
            require_active_clip(name, execution, guards.clip_active_steps, sheet)
    if guards.training_effect is not None:
        _require_training_effect(guards.training_effect, candidate, run, sheet)


def _require_steps(guards: Guards, candidate: ArmEvidence, sheet: Sheet) -> None:
    steps = len(candidate.series.loss)
    sheet.figure("steps_run", steps, "steps")
    if steps < guards.steps:
        settle(reasons.VACUOUS_STEPS, f"{steps} steps were compared, the guard demands {guards.steps}")


def require_trained(name: str, execution: ArmEvidence) -> None:
    """Settle unless frozen tensors stayed, trainable ones changed, and no update was left out."""
    start, end = execution.start, end_of(execution)
    if start.frozen_digest != end.frozen_digest:
        settle(reasons.FROZEN_CHANGED, f"the frozen tensors of {name} changed during its {end.steps_called} steps")
    if start.trainable_tensors == 0 or start.trainable_digest == end.trainable_digest:
        settle(
            reasons.VACUOUS_PARAMETERS_UNCHANGED,
            f"the {start.trainable_tensors} trainable tensors of {name} ended as they began",
        )
    if end.skipped_steps > 0:
        settle(reasons.VACUOUS_SKIPPED_STEP, f"{name} left out {end.skipped_steps} of {end.steps_called} updates")


def _require_distinct_batches(guards: Guards, candidate: ArmEvidence, sheet: Sheet) -> None:
    seen = distinct(candidate.series.batch_digest)
    sheet.figure("distinct_batches", seen, "batches")
    if guards.distinct_batches is not None and seen < guards.distinct_batches:
        settle(
            reasons.VACUOUS_BATCHES_REPEAT,
            f"{seen} distinct batches were seen, the guard demands {guards.distinct_batches}",
        )


def require_active_clip(name: str, execution: ArmEvidence, demanded: int, sheet: Sheet) -> None:
    """Settle unless the clip was active (a group above the threshold) in at least `demanded` steps."""
    active = np.asarray(execution.series.clip_active_groups)
    if demanded > 0 and len(active) and (active < 0).all():
        settle(reasons.CAPABILITY_MISSING, f"the system of {name} does not offer `gradient_norms`")
    steps = int((active > 0).sum())
    if "clip_active_steps" not in sheet.figures:
        sheet.figure("clip_active_steps", steps, "steps")
    if steps < demanded:
        settle(
            reasons.VACUOUS_CLIP_INACTIVE,
            f"the clip of {name} was active in {steps} of {len(active)} steps, the guard demands {demanded}",
        )


def _require_training_effect(effect: TrainingEffect, candidate: ArmEvidence, run: RunEvidence, sheet: Sheet) -> None:
    control = executed(run, effect.control)
    _require_honest_control(effect.control, control, candidate)
    require_finite({f"control {effect.control}": control}, sheet)
    ours, theirs = losses(candidate)[-effect.last :], losses(control)[-effect.last :]
    if len(ours) < effect.last:
        settle(reasons.VACUOUS_STEPS, f"{len(ours)} steps are fewer than the training effect's last {effect.last}")
    gained = float(np.mean(theirs) - np.mean(ours))
    sheet.figure("training_effect", gained, "loss")
    sheet.figure("training_effect_demanded", effect.at_least, "loss")
    if not gained >= effect.at_least:
        settle(
            reasons.VACUOUS_TRAINING_EFFECT,
            f"over the last {effect.last} steps the mean loss lies {number(gained)} below the control's, "
            f"the guard demands {number(effect.at_least)}",
        )


def _require_honest_control(name: str, control: ArmEvidence, candidate: ArmEvidence) -> None:
    """The control sees the candidate's batches from the candidate's start, and its parameters stay."""
    problem = ""
    if control.start.trainable_digest != candidate.start.trainable_digest:
        problem = "starts from other parameters than the candidate"
    elif len(control.series.loss) != len(candidate.series.loss):
        problem = f"has {len(control.series.loss)} steps and the candidate {len(candidate.series.loss)}"
    elif (step := first_unequal(control.series.batch_digest, candidate.series.batch_digest)) is not None:
        problem = f"reads another batch than the candidate at step {step}"
    elif end_of(control).trainable_digest != control.start.trainable_digest:
        problem = "was trained: its parameters changed"
    if problem:
        settle(reasons.VACUOUS_TRAINING_EFFECT, f"the control {name} {problem}, so it shows no training effect")
