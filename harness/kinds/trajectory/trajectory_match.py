"""Judge `trajectory_match`: two arms' losses, or another metric, agree in bits, within a bound or within noise.

With `equality: bitwise`, the end states must also be equal. With `within`, the distance between the arms' final
parameters is also reported. With `noise`, several runs of both arms are compared in losses, gradients and end states
(`harness.judging.own_noise`). The noise floor is the baseline's largest absolute difference from its repetition.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, end_of, executed, replicas
from harness.judging.controls import moved_by_rounding
from harness.judging.end_state import (
    differing,
    distance,
    note_distance,
    note_watched,
    require_distance,
    require_equal_counts,
)
from harness.judging.near_ends import require_near_ends
from harness.judging.own_noise import require_decided, require_within_noise
from harness.judging.series import (
    ANY,
    EXACT,
    LOSS,
    Bounds,
    Compared,
    called,
    difference,
    losses,
    note_difference,
    require_equal,
    rounding_of,
    values,
)
from harness.judging.sheet import Sheet, number, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.seeds.model import NotWorse
from harness.kinds.trajectory.model import TrajectoryMatch
from harness.numbers import counted

SAME = "the same operators on the same types, shapes and strides, and equal bits in every loss and all state"


def judge(part: TrajectoryMatch, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks, in order: a replayed capture, the precisions, finite losses, equal
    starts, equal batches, the noise floor, the difference between the series, the guards, the end states."""
    if part.equality == "noise":
        return _judge_by_noise(part, context, sheet)
    run = context.only_run("paired")
    candidate, baseline = executed(run, part.candidate), executed(run, part.baseline)
    repetitions = replicas(run, part.baseline, _repetitions(part, run))[1:]
    comparison = Comparison(part, context, sheet)
    comparison.captured(candidate, baseline, *repetitions)

    floor = rounding_of(baseline) if part.metric == LOSS else 0.0
    control = None if part.ends is None else executed(run, part.ends.control)
    rounding = None if control is None else moved_by_rounding(control, baseline, part.metric)
    bounds = Bounds(part.max_abs_difference, part.max_relative_difference, floor, rounding)
    [pair] = compared(part, run)
    found, repeats = pair.difference(bounds), pair.repeated(bounds)
    note_difference(sheet, found, part.equality, bounds, part.metric)
    noise = max(each.largest for each in repeats)
    _note_noise(sheet, noise, found.largest, part.metric)
    _note_ends(sheet, candidate, baseline, part.metric)
    note_distance(candidate, baseline, sheet)

    ours, theirs = f"candidate {part.candidate}", f"baseline {part.baseline}"
    repeated = {f"{theirs} (repetition {index})": each for index, each in enumerate(repetitions, 1)}
    named = {theirs: baseline, ours: candidate, **repeated}
    note_watched(named, sheet)
    same_system = context.same_system(part.candidate, part.baseline)
    require_precisions(part, candidate, baseline)
    require_parameter_dtypes(part, candidate, baseline)
    group = Group(
        named,
        roles=dict.fromkeys(repeated, "repetition"),
        metric=part.metric,
        same_system=same_system,
        same_formats=same_system and not part.formats_differ(),
        rounded=part.parameter_dtypes is not None,
        more_in=ours if part.equality == "within" else None,
        bits=part.equality == "bitwise" and part.compare != "first",
        run=run,
    )
    comparison.begin(group)
    if exceeding := [each.excess(bounds) for each in repeats if each.first_exceeding is not None]:
        settle(reasons.NOISE_ABOVE_TOLERANCE, f"{theirs} differs from its own repetition by {max(exceeding)[2]}")
    in_noise = _in_noise(noise, found.largest)
    require_equal(found, part.equality, bounds, f"{ours} and {theirs}", sheet, in_noise, part.metric)
    comparison.end(group)
    if part.equality == "within" and part.compare == "every" and same_system:
        require_equal_counts(ours, candidate, theirs, baseline, part.max_relative_difference or 0.0)
    ends, excused = "", ""
    if part.ends is not None and control is not None:
        excused = require_near_ends(
            part.ends, ours, candidate, theirs, baseline, control, sheet, same_system=same_system
        )
    if part.compare != "first":
        require_equal_clips(ours, candidate, theirs, baseline, sheet)
    same = note_same_step(part, context, candidate, baseline, sheet)
    if part.equality == "within":
        require_distance(ours, candidate, baseline)
        ends = distance(candidate, baseline)
    where = f"at all {found.steps} steps" if part.compare == "every" else f"at the {part.compare} step"
    how = "are equal in bits" if part.equality == "bitwise" else f"differ by at most {number(found.largest)}"
    if found.as_rounding and part.ends is not None:
        sheet.figure("rounding_steps", found.as_rounding, "steps")
        if found.rounding >= np.ptp(values(baseline, part.metric)):
            sheet.leave_open(
                reasons.ENDS_UNDECIDED,
                f"a rounding at the start moves the {called(part.metric)} of {part.ends.control} so far from {theirs} "
                "that a fault of any size could not be distinguished from rounding",
            )
        how += f", at {counted(found.as_rounding, 'step')} by no more than rounding alone explains,"
    return comparison.held(f"the {called(part.metric)} of {ours} and {theirs} {how} {where}{ends}{excused}{same}")


def compared(part: TrajectoryMatch, run: RunEvidence) -> list[Compared]:
    """Return a list with one comparison of the claim's metric: the candidate's series with the baseline's. It also has
    the series of the baseline's repetitions. End the judgement with ERROR if an arm is missing."""
    baselines = replicas(run, part.baseline, 1) and run.arms[part.baseline][: _repetitions(part, run)]
    ours, theirs, *again = (values(each, part.metric) for each in (executed(run, part.candidate), *baselines))
    return [Compared(part.candidate, part.baseline, ours, theirs, part.metric, part.compare, tuple(again))]


def _repetitions(part: TrajectoryMatch, run: RunEvidence) -> int:
    if part.equality == "noise":
        return part.replicas()[part.baseline]
    return max(2, len(run.arms.get(part.baseline, [])))


def _judge_by_noise(part: TrajectoryMatch, context: Context, sheet: Sheet) -> Judgement:
    """Judge all runs of both arms for a claim with `equality: noise`. The order of the checks is that of `judge`, but
    the end states are compared together with the series."""
    run = context.only_run("paired")
    ours, theirs = f"candidate {part.candidate}", f"baseline {part.baseline}"
    comparison = Comparison(part, context, sheet)
    executions = {}
    for name, arm in ((theirs, part.baseline), (ours, part.candidate)):
        for index, each in enumerate(replicas(run, arm, part.replicas()[arm])):
            comparison.captured(each)
            executions[name if index == 0 else f"{name} (repetition {index})"] = each
    baselines = {name: each for name, each in executions.items() if each.start.arm == part.baseline}
    candidates = {name: each for name, each in executions.items() if name not in baselines}
    candidate, baseline = candidates[ours], baselines[theirs]
    [pair] = compared(part, run)
    found = pair.difference()
    note_difference(sheet, found, part.equality, ANY, part.metric)
    _note_noise(sheet, max((each.largest for each in pair.repeated()), default=0.0), found.largest, part.metric)
    _note_ends(sheet, candidate, baseline, part.metric)
    note_distance(candidate, baseline, sheet)
    note_watched(executions, sheet)
    same_system = context.same_system(part.candidate, part.baseline)
    group = Group(executions, metric=part.metric, same_formats=same_system, bits=False, run=run)
    comparison.begin(group)
    comparison.finite_ends(executions)
    if not found.steps:
        comparison.end(group)
    ends = partial(comparison.equal_but_for, same_system=same_system)
    seen = require_within_noise(part, candidates, baselines, sheet, ends)
    comparison.end(group)
    require_equal_clips(ours, candidate, theirs, baseline, sheet)
    hidden = require_decided(part, seen, candidates, baselines, run)
    return comparison.held(
        f"{len(candidates)} runs of {ours} and of {theirs} differ by no more than runs of one arm do, in the "
        f"{called(part.metric)} of all {found.steps} steps{hidden}"
    )


def require_precisions(part: TrajectoryMatch | NotWorse, candidate: ArmEvidence, baseline: ArmEvidence) -> None:
    """End the judgement with FAIL unless each arm computes in the precision that the claim names for it."""
    if part.precisions is None:
        return
    for demanded, execution in ((part.precisions.candidate, candidate), (part.precisions.baseline, baseline)):
        found = execution.start.facts.get("dtype", "a type that it does not state")
        if found != demanded:
            settle(reasons.VACUOUS_PRECISION, f"{execution.start.arm} computes in {found}, but {demanded} is required")


def require_parameter_dtypes(part: TrajectoryMatch, candidate: ArmEvidence, baseline: ArmEvidence) -> None:
    """End the judgement with FAIL unless every trainable tensor of each arm has the data type that the claim names."""
    if part.parameter_dtypes is None:
        return
    types = part.parameter_dtypes
    for demanded, execution in ((types.candidate, candidate), (types.baseline, baseline)):
        arm, found = execution.start.arm, execution.start.trainable_dtypes
        if found is None:
            settle(reasons.EVIDENCE_MISSING, f"the data types of {arm}'s trainable parameters were not recorded")
        if found != [demanded]:
            settle(
                reasons.VACUOUS_PARAMETER_DTYPE,
                f"the data types of the trainable parameters of {arm} are {some(found) or 'none'}, but {demanded} is "
                "required",
            )


def multiple_of(largest: float, floor: float) -> float:
    """Return `largest` / `floor`. If `floor` is 0, return 0 if `largest` is 0, NaN if `largest` is NaN, and infinity
    otherwise."""
    if floor == 0:
        return 0.0 if largest == 0 else math.inf if largest > 0 else math.nan
    return largest / floor


def _note_noise(sheet: Sheet, noise: float, largest: float, metric: str) -> None:
    sheet.figure("noise_floor", noise, metric)
    sheet.figure("multiple_of_noise_floor", multiple_of(largest, noise))


def _in_noise(noise: float, largest: float) -> str:
    if noise == 0:
        return "; the baseline repeats itself exactly"
    times = number(multiple_of(largest, noise))
    return f"; the largest absolute difference is {times} times the noise floor of {number(noise)}"


def _note_ends(sheet: Sheet, candidate: ArmEvidence, baseline: ArmEvidence, metric: str) -> None:
    for name, execution in (("candidate", candidate), ("baseline", baseline)):
        series = values(execution, metric)
        sheet.figure(f"final_{metric}_{name}", float(series[-1]) if len(series) else None, metric)
    equal = end_of(candidate).trainable_digest == end_of(baseline).trainable_digest
    sheet.figure("final_parameters_equal", equal)


def note_same_step(
    part: TrajectoryMatch, context: Context, candidate: ArmEvidence, baseline: ArmEvidence, sheet: Sheet
) -> str:
    """Return a clause for the verdict's message if the candidate's step executes the same operations as the baseline's
    step, else "".

    If the claim requires different steps (`switched_on`), but the steps are the same, the claim stays undecided.
    """
    ours, theirs = end_of(candidate).step_form, end_of(baseline).step_form
    equal = _equal_bits(candidate, baseline)
    if part.switched_on and equal and (None in (ours, theirs) or ours == theirs):
        sheet.leave_open(
            reasons.OPTIMIZATION_OFF,
            f"the optimization seems to have no effect: {part.candidate} and {part.baseline} run {SAME}. If the "
            "optimization is meant to keep operators and bits equal, claim its gain in speed or memory instead, and "
            "remove `switched_on`",
        )
    arms = context.contract.arms
    differs = arms[part.candidate].settings() != arms[part.baseline].settings()
    return (
        f"; the harness sees no difference between the arms: {SAME}"
        if differs and equal and ours is not None and ours == theirs
        else ""
    )


def _equal_bits(candidate: ArmEvidence, baseline: ArmEvidence) -> bool:
    ours, theirs = end_of(candidate), end_of(baseline)
    apart = difference(losses(candidate), losses(baseline), "every", EXACT)
    if apart.first_differing is not None or ours.trainable_digest != theirs.trainable_digest:
        return False
    return ours.state is None or theirs.state is None or not differing(ours.state, theirs.state)


def require_equal_clips(ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence, sheet: Sheet) -> None:
    """Leave the claim undecided if one arm clips gradients, no gradient reaches the clip's threshold, and the other arm
    certainly does not clip. The comparison then cannot show whether a clip is missing in the other arm.

    If a clip changes gradients, no such check is needed, because the compared numbers then show the effect of the clip.
    """
    clips = {ours: end_of(candidate).clip, theirs: end_of(baseline).clip}
    found = {name: clip for name, clip in clips.items() if clip is not None and clip.seen}
    without = [name for name, clip in clips.items() if clip is not None and clip.seen is False]
    if len(found) != 1 or not without:
        return
    ((name, clip),) = found.items()
    if not clip.acted:
        sheet.figure("clip_without_effect", f"{name}: {clip.operator}")
        sheet.leave_open(
            reasons.CLIP_UNSEEN,
            f"{name} clips its gradients (`{clip.operator}`), but no gradient reached the limit in the watched steps; "
            f"{without[0]} does not clip, so the comparison cannot show whether it should. Lower the limit in both "
            "arms, or use batches whose gradients reach the limit",
        )
