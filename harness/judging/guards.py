"""Check the guards: conditions that a training must meet before a claim about it may pass.

If a guard is not met, the verdict is FAIL; for the guard `floor` it is INCONCLUSIVE. Most of the reason codes begin
with `vacuous_`. Guards are checked after the arms were compared, so that a real difference between the arms is reported
as a difference and not as an unmet guard. One check comes earlier: a claim of kind `not_worse` requires distinct
batches before it compares losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.contract.guards import Bounded, Floor, Guarded, Guarding, Guards, TrainingEffect
from harness.evidence.read_run import distinct
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.context import end_of, executed
from harness.judging.equal_start import start_differences
from harness.judging.series import (
    EXACT,
    LOSS,
    Bounds,
    Losses,
    difference,
    first_unequal,
    losses,
    names_apart,
    require_finite,
    values,
)
from harness.judging.sheet import Sheet, number, require_steps, settle
from harness.kinds.trajectory.model import TrajectoryMatch

# The control's loss changes from batch to batch, because the batches differ. The loss of a trained arm must follow at
# least this share of the change. The share must also be at least `STANDARD_ERRORS` standard errors above zero. Trained
# arms showed shares of 0.38 to 0.82, at 6 to 25 standard errors. If losses do not depend on the batches, the share is
# about 0.
FOLLOWS_AT_LEAST = 0.1
STANDARD_ERRORS = 4.0


def require_guards(part: Guarding, executions: Mapping[str, ArmEvidence], run: RunEvidence, sheet: Sheet) -> None:
    """End the judgement (by raising `Settled`) unless all guards hold. executions: the candidate's comes first."""
    guards = part.guards
    candidate = next(iter(executions.values()))
    require_steps(len(candidate.series.loss), guards.steps, sheet)
    for name, execution in executions.items():
        require_trained(name, execution, zero_loss=guards.floor is not None)
    require_distinct_batches(guards, candidate, sheet)
    if guards.clip_active_steps is not None:
        for name, execution in executions.items():
            require_active_clip(name, execution, guards.clip_active_steps, sheet)
    if guards.training_effect is not None:
        _require_training_effect(guards.training_effect, _of_the_beginning(part), candidate, run, sheet)
    if guards.floor is not None:
        _require_floor(guards.floor, candidate, executed(run, guards.floor.control), sheet)


def _of_the_beginning(part: Guarding) -> Bounds:
    """Return the bounds within which the first loss of the candidate must agree with the first loss of the control."""
    if not isinstance(part, Guarded) or part.equality == "bitwise":
        return EXACT
    if isinstance(part, TrajectoryMatch) and part.metric != LOSS:
        return Bounds(None)
    return Bounds(part.max_abs_difference, part.max_relative_difference if isinstance(part, Bounded) else None)


def control_of(guards: Guards, run: RunEvidence) -> dict[str, ArmEvidence]:
    """Return the execution of the untrained control, by its name in messages; {} if no guard names a control."""
    return {f"control {arm}": executed(run, arm) for arm in guards.controls().values()}


def require_trained(name: str, execution: ArmEvidence, skipped_at_most: int = 0, *, zero_loss: bool = False) -> None:
    """End the judgement (by raising `Settled`) unless the execution trained: trainable tensors and the loss changed,
    and frozen tensors did not. skipped_at_most: how many updates may be skipped. zero_loss: True if the loss may be 0
    in all steps."""
    start, end = execution.start, end_of(execution)
    require_frozen(name, execution)
    if start.trainable_tensors == 0 or start.trainable_digest == end.trainable_digest:
        settle(
            reasons.VACUOUS_PARAMETERS_UNCHANGED,
            f"the {start.trainable_tensors} trainable tensors of {name} have the same values at the end as at the "
            "start",
        )
    if end.skipped_steps > skipped_at_most:
        settle(reasons.VACUOUS_SKIPPED_STEP, f"{name} skipped {end.skipped_steps} of {end.steps_called} updates")
    replay = execution.long_replay  # the series of losses has few steps, but this record's digests cover all steps
    moved = replay is not None and len({each.losses for each in replay.blocks if each.steps == replay.every}) > 1
    if not moved and (losses(execution).any() or not zero_loss):
        _require_movement(name, losses(execution))


def require_frozen(name: str, execution: ArmEvidence) -> None:
    """Raise FAIL if frozen tensors changed."""
    end = end_of(execution)
    if execution.start.frozen_digest != end.frozen_digest:
        settle(reasons.FROZEN_CHANGED, f"the frozen tensors of {name} changed during its {end.steps_called} steps")


def _require_movement(name: str, series: Losses, where: str = "") -> None:
    if len(series) > 1 and (series == series[0]).all():
        settle(reasons.VACUOUS_CONSTANT_LOSS, f"the loss of {name} is {series[0]} at all {len(series)} steps{where}")


def require_moving(executions: Mapping[str, ArmEvidence], metric: str) -> None:
    """Raise FAIL if a metric has the same value in all steps of an execution. `require_trained` checks the loss."""
    for name, execution in executions.items() if metric != LOSS else ():
        series = values(execution, metric)
        if len(series) > 1 and (series == series[0]).all():
            settle(
                reasons.VACUOUS_CONSTANT_METRIC,
                f"the metric `{metric}` of {name} is {series[0]} at all {len(series)} steps",
            )


def require_distinct_batches(guards: Guards, candidate: ArmEvidence, sheet: Sheet) -> None:
    """End the judgement (by raising `Settled`) unless the candidate read enough distinct batches."""
    seen = distinct(candidate.series.batch_digest)
    sheet.figure("distinct_batches", seen, "batches")
    demanded = guards.distinct_batches
    if demanded is not None and not sheet.meets("distinct_batches", seen, "at least", demanded, "batches", beside=True):
        settle(
            reasons.VACUOUS_BATCHES_REPEAT,
            f"{seen} distinct batches were read, but the guard requires {demanded}",
        )


def require_active_clip(name: str, execution: ArmEvidence, demanded: int, sheet: Sheet) -> None:
    """End the judgement (by raising `Settled`) unless, in at least `demanded` steps, the norm of a group of gradients
    exceeded the clip's threshold."""
    active = np.asarray(execution.series.clip_active_groups)
    if demanded > 0 and len(active) and (active < 0).all():
        settle(reasons.CAPABILITY_MISSING, f"the system of {name} does not offer the capability `gradient_norms`")
    steps = int((active > 0).sum())
    if "clip_active_steps" not in sheet.figures:
        sheet.figure("clip_active_steps", steps, "steps")
    if not sheet.meets("clip_active_steps", steps, "at least", demanded, "steps", beside=True):
        settle(
            reasons.VACUOUS_CLIP_INACTIVE,
            f"the gradient clip of {name} changed gradients in {steps} of {len(active)} steps, but the guard requires "
            f"{demanded}",
        )


def _require_training_effect(
    effect: TrainingEffect, beginning: Bounds, candidate: ArmEvidence, run: RunEvidence, sheet: Sheet
) -> None:
    """Raise FAIL unless the candidate's loss at the end is lower than the control's loss on equal batches by the
    required amount."""
    control = executed(run, effect.control)
    if problem := _control_problem(control, candidate):
        settle(
            reasons.VACUOUS_TRAINING_EFFECT,
            f"the control {effect.control} {problem}, so it shows no training effect",
        )
    require_finite({f"control {effect.control}": control}, sheet)
    ours, theirs = losses(candidate), losses(control)
    if len(ours) < effect.last:
        settle(
            reasons.VACUOUS_STEPS,
            f"only {len(ours)} steps were recorded, but the training effect is computed over the "
            f"last {effect.last} steps",
        )
    _require_one_beginning(effect.control, ours, theirs, beginning)
    below = (theirs - ours)[-effect.last :]
    gained = float(np.mean(below))
    sheet.figure("training_effect", gained, "loss")
    sheet.figure("training_effect_demanded", effect.at_least, "loss")
    if not sheet.meets("training_effect", gained, "at least", effect.at_least, "loss", beside=True):
        settle(
            reasons.VACUOUS_TRAINING_EFFECT,
            f"over the last {effect.last} steps the mean loss lies {number(gained)} below the control's, but the guard "
            f"requires {number(effect.at_least)}",
        )
    _require_movement(
        "the candidate", ours[-effect.last :], f" over the last {effect.last} steps of the training effect"
    )
    _require_more_than_noise(effect, ours, theirs, sheet)


def _require_one_beginning(name: str, ours: Losses, theirs: Losses, bounds: Bounds) -> None:
    """Raise FAIL unless candidate and control have the same loss, within the bounds, in the first step. No update has
    changed their parameters before this loss."""
    first = difference(ours[:1], theirs[:1], "every", bounds)
    apart = first.first_differing if bounds == EXACT else first.first_exceeding
    if apart is not None:
        settle(
            reasons.VACUOUS_CONTROL_DIFFERS,
            f"at step 0, with equal start and batch, the candidate's loss is {ours[0]}, but the loss of the control "
            f"{name} is {theirs[0]}",
        )


def _require_more_than_noise(effect: TrainingEffect, ours: Losses, theirs: Losses, sheet: Sheet) -> None:
    """Raise FAIL if differences between the batches alone (noise) may explain the training effect.

    One of two facts rules out this explanation: the candidate's loss at the end is below every loss of the control by
    the required amount, or the candidate's loss follows the control's loss from batch to batch.
    """
    beyond = float(theirs.min() - np.mean(ours[-effect.last :]))
    share, error = shared_change(ours, theirs)
    sheet.figure("below_any_control_loss", beyond, "loss")
    sheet.figure("follows_control", share)
    follows = share >= FOLLOWS_AT_LEAST and share > STANDARD_ERRORS * error
    if beyond < effect.at_least and not follows:
        settle(
            reasons.VACUOUS_TRAINING_EFFECT,
            f"from step to step, the loss follows {number(share)} of the change of the control's loss (standard error "
            f"{number(error)}), so the noise of the batches alone may explain the training effect",
        )


def shared_change(ours: Losses, theirs: Losses) -> tuple[float, float]:
    """Return the share of the control's changes from step to step that the candidate's loss repeats, and the standard
    error of this share. The share is the slope of a regression through the origin.

    The regression uses changes and not losses, because a decrease over many steps must not count as following the
    control.
    """
    mine, control = np.diff(ours), np.diff(theirs)
    spread = float(control @ control)
    if len(mine) < 3 or spread == 0:
        return 0.0, 0.0
    slope = float(mine @ control) / spread
    rest = mine - slope * control
    return slope, float(np.sqrt(rest @ rest / (len(mine) - 1) / spread))


def _require_floor(floor: Floor, candidate: ArmEvidence, control: ArmEvidence, sheet: Sheet) -> None:
    """Raise INCONCLUSIVE unless parameters changed enough, or the loss at the end is clearly below the control's.

    "Clearly" means by several standard errors, computed as for two independent series. A comparison of the losses batch
    by batch would be too sensitive: it would show, and so accept, even an update of a millionth.
    """
    moved = end_of(candidate).moved
    sheet.figure("moved", moved, "of a parameter's size")
    if moved is not None and moved >= floor.moved:
        return
    problem = _control_problem(control, candidate)
    ours, theirs = (losses(each)[len(losses(each)) // 2 :] for each in (candidate, control))
    gained, error = float(np.mean(theirs) - np.mean(ours)), _standard_error(ours, theirs)
    sheet.figure("training_effect", gained, "loss")
    sheet.figure("training_effect_standard_error", error, "loss")
    if problem or not gained > floor.standard_errors * error:
        effect = (
            f"the control {control.start.arm} {problem}"
            if problem
            else f"the loss lies {number(gained)} below the control's with a standard error of {number(error)}, but "
            f"more than {floor.standard_errors:g} standard errors are required"
        )
        by = "changes only from zero" if moved is None else f"changed by {number(moved)} of its size"
        settle(
            reasons.TRAINED_TOO_LITTLE,
            f"the median parameter {by}, but {number(floor.moved)} is required, and {effect}: wrong training would "
            "look the same",
        )


def _standard_error(*series: Losses) -> float:
    """Return the standard error of the difference between the series' means, or infinity if a series is too short."""
    if min(map(len, series)) < 2:
        return math.inf
    return float(np.sqrt(sum(np.var(each, ddof=1) / len(each) for each in series)))


def _control_problem(control: ArmEvidence, candidate: ArmEvidence) -> str:
    """Return "" if the control is an untrained run with the candidate's start and batches, else what is wrong."""
    problem = ""
    if control.start.trainable_digest != candidate.start.trainable_digest:
        ours, theirs = control.start.trainable_names, candidate.start.trainable_names
        problem = f"starts from parameters that differ from the candidate's{_named_apart(ours, theirs)}"
    elif len(control.series.loss) != len(candidate.series.loss):
        problem = f"has {len(control.series.loss)} steps, but the candidate has {len(candidate.series.loss)}"
    elif (step := first_unequal(control.series.batch_digest, candidate.series.batch_digest)) is not None:
        ours, theirs = end_of(control).input_names, end_of(candidate).input_names
        problem = f"reads a different batch from the candidate at step {step}{_named_apart(ours, theirs)}"
    elif end_of(control).trainable_digest != control.start.trainable_digest:
        problem = "was trained, because its parameters changed"
    elif end_of(control).frozen_digest != control.start.frozen_digest:
        problem = "changed its frozen tensors"
    # Do not compare the optimizer's state, which may differ because the control has another learning rate.
    elif any(entry.category in ("buffers", "generators") for entry in start_differences(control, candidate)):
        problem = "starts from buffers or generators that differ from the candidate's"
    return problem


def _named_apart(ours: Sequence[str] | None, theirs: Sequence[str] | None) -> str:
    apart = names_apart("the control", ours, "the candidate", theirs)
    return f" ({apart})" if apart else ""
