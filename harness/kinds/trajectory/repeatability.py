"""Judge `repeatability` (runs of one arm agree) and `runs_differ` (two arms differ). The judges of speed and memory
also use this file to check that two arms train in the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from harness.contract.schema import parts_of
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, executed, replicas
from harness.judging.end_state import distance, note_distance, note_watched, require_distance
from harness.judging.series import (
    Bounds,
    Compared,
    Difference,
    difference,
    first_true,
    losses,
    note_difference,
    require_equal,
)
from harness.judging.sheet import Sheet, number, require_steps, settle
from harness.judging.verdict import Judgement
from harness.kinds.speed.model import compares_timed_steps
from harness.kinds.trajectory.model import Repeatability, RunsDiffer, TrajectoryMatch
from harness.kinds.trajectory.trajectory_match import require_precisions

# Judges of claims about speed and memory call the following functions to check that both arms trained, and in the same
# way.


def named_trajectory(claim_id: str, context: Context) -> TrajectoryMatch:
    """Return the trajectory_match part of the claim with this id. If there is none, end the judgement with ERROR.

    If there are several parts, return the first part for which `compares_timed_steps` is True, or else the first part.
    A part about another metric, or about only the first step, would hold even if the losses differ.
    """
    named = [claim for claim in context.contract.claims if claim.id == claim_id]
    found = [each for claim in named for each in parts_of(claim) if isinstance(each, TrajectoryMatch)]
    if not found:
        settle(reasons.EVIDENCE_MISSING, f"the contract has no trajectory_match claim {claim_id}")
    chosen = next((each for each in found if compares_timed_steps(each)), found[0])
    trajectory = context.resolved(chosen)
    return trajectory if isinstance(trajectory, TrajectoryMatch) else chosen


def require_equal_training(
    trajectory: TrajectoryMatch,
    named: Mapping[str, ArmEvidence],
    comparison: Comparison,
    sheet: Sheet,
    *,
    nothing: str,
    same_system: bool,
) -> None:
    """End the judgement unless both arms trained in the measured steps, and these steps satisfy the claim `trajectory`.
    The checks are the same as in the judge of `trajectory_match`.

    named: the executions of the baseline and then of the candidate, by the names that messages use. nothing: the
    message if no step was recorded. same_system: True if one system trains both arms.
    """
    (theirs, baseline), (ours, candidate) = named.items()
    require_precisions(trajectory, candidate, baseline)
    group = Group(
        named,
        same_system=same_system,
        same_formats=same_system and trajectory.precisions is None,
        more_in=ours if trajectory.equality == "within" else None,
        bits=trajectory.equality == "bitwise",
    )
    comparison.begin(group)
    bounds = Bounds(trajectory.max_abs_difference, trajectory.max_relative_difference)
    found = difference(losses(candidate), losses(baseline), trajectory.compare, bounds)
    if found.steps == 0:
        settle(reasons.VACUOUS_STEPS, nothing)
    # With `equality: noise`, all processes of a timing are judged together, in another function.
    require_equal(found, trajectory.equality, bounds, f"{ours} and {theirs}", sheet, beside=True)
    note_watched(named, sheet)
    comparison.end(group)


def judge(part: Repeatability, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. Every repetition is compared with the first run, and the repetition that differs
    most decides."""
    run = context.only_run("paired")
    executions = replicas(run, part.candidate, part.runs)
    comparison = Comparison(part, context, sheet)
    comparison.captured(*executions)
    bounds = Bounds(part.max_abs_difference, part.max_relative_difference)
    found = [pair.difference(bounds) for pair in compared(part, run)]
    worst = max(range(len(found)), key=lambda index: _badness(found[index]))
    note_difference(sheet, found[worst], part.equality, bounds)
    sheet.count("runs", len(executions))

    names = [f"run {index} of {part.candidate}" for index in range(len(executions))]
    named = dict(zip(names, executions, strict=True))
    note_watched(named, sheet)
    note_distance(executions[worst + 1], executions[0], sheet)
    group = Group(named, bits=part.equality == "bitwise", run=run)
    comparison.begin(group)
    require_equal(found[worst], part.equality, bounds, f"{names[worst + 1]} and {names[0]}", sheet)
    comparison.end(group)
    ends = ""
    if part.equality == "within":
        for name, execution in list(named.items())[1:]:
            require_distance(name, execution, executions[0])
        ends = distance(executions[worst + 1], executions[0])
    how = "equal in bits" if part.equality == "bitwise" else f"within {number(found[worst].largest)} of the first run"
    return comparison.held(
        f"{len(executions)} runs of {part.candidate} are {how} at all {found[worst].steps} steps{ends}"
    )


def compared(part: Repeatability, run: RunEvidence) -> list[Compared]:
    """Return a comparison of each repetition with the first run. End the judgement with ERROR if a run is missing."""
    first, *others = (losses(each) for each in replicas(run, part.candidate, part.runs))
    names = [f"{part.candidate}, run {place}" for place in range(part.runs)]
    return [Compared(name, names[0], each, first) for name, each in zip(names[1:], others, strict=True)]


def _badness(found: Difference) -> tuple[bool, bool, float, int]:
    # NaN is the worst difference, but in Python NaN is never larger than a number. Therefore NaN has its own entry,
    # which comes first in the sort key.
    return (math.isnan(found.largest), found.first_exceeding is not None, found.largest, found.differing)


# The following functions judge `runs_differ`. Two arms that differ in one setting must have different losses. If the
# claim requires it, the arms must also have different batches and starts.


def judge_differing(part: RunsDiffer, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks, in order: finite losses, that no recording replays uncompiled
    operators instead of compiled code, enough steps, that losses, batches and starts differ, that both arms trained."""
    run = context.only_run("paired")
    ours, theirs = executed(run, part.candidate), executed(run, part.baseline)
    named = {part.baseline: theirs, part.candidate: ours}
    comparison, group = Comparison(part, context, sheet), Group(named)
    comparison.captured(theirs, ours)
    note_watched(named, sheet)
    comparison.begin(group)
    steps = min(len(ours.series.loss), len(theirs.series.loss))
    sheet.count("steps", steps)
    require_steps(steps, max(part.steps, part.losses_from + 1), sheet)
    equal = losses(ours)[:steps].view(np.int64) == losses(theirs)[:steps].view(np.int64)
    same_batch = np.array(ours.series.batch_digest[:steps]) == np.array(theirs.series.batch_digest[:steps])
    later = np.flatnonzero(equal[part.losses_from :]) + part.losses_from
    first_batch = first_true(same_batch)
    sheet.figure("losses_equal", int(equal.sum()), "steps")
    sheet.figure("batches_equal", int(same_batch.sum()), "steps")
    sheet.figure("start_equal", ours.start.trainable_digest == theirs.start.trainable_digest)
    names = f"{part.candidate} and {part.baseline}"
    of = steps - part.losses_from
    if not sheet.meets("losses_equal", len(later), "none", noun="steps have equal losses", of=of):
        settle(
            reasons.LOSSES_EQUAL,
            f"the losses of {names} are equal in bits at {len(later)} of the steps from {part.losses_from} on, first "
            f"at step {later[0]}",
        )
    same = int(same_batch.sum())
    if part.batches and not sheet.meets("batches_equal", same, "none", noun="steps read the same batch", of=steps):
        settle(
            reasons.BATCHES_EQUAL,
            f"{names} read the same batch at {same} of {steps} steps, first at step {first_batch}",
        )
    if part.start and ours.start.trainable_digest == theirs.start.trainable_digest:
        settle(reasons.START_EQUAL, f"{names} start from equal trainable parameters")
    comparison.end(group)
    beside = [what for what, demanded in (("batches", part.batches), ("starts", part.start)) if demanded]
    also = f", and their {' and '.join(beside)} differ, too" if beside else ""
    return comparison.held(f"the losses of {names} differ in bits at every step from {part.losses_from} on{also}")
