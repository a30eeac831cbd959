"""Judge `ranks_match`: several ranks train like one process that reads the rows of all ranks, within a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from harness.evidence.arm_records import RankSteps
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, end_of, executed
from harness.judging.end_state import note_distance, note_watched, require_distance
from harness.judging.near_ends import require_near_ends
from harness.judging.series import Bounds, Compared, losses, note_difference, require_equal
from harness.judging.sheet import Sheet, number, require_steps, settle
from harness.judging.verdict import Judgement
from harness.kinds.ranks.executions import buffers_apart, named, of_ranks, rank_steps, readers
from harness.kinds.ranks.model import RanksMatch
from harness.numbers import counted


def judge(part: RanksMatch, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: a replayed capture, finite losses, equal
    start and rows, the losses, that training had an effect in every arm and rank, the end states."""
    run = context.only_run("paired")
    arm = context.contract.arms[part.candidate]
    executions = of_ranks(run, part.candidate, arm.ranks)
    baseline = executed(run, part.baseline)
    comparison = Comparison(part, context, sheet)
    comparison.captured(*executions.values())
    theirs = f"baseline {part.baseline}"
    in_turn = None if part.in_turn is None else executed(run, part.in_turn)
    everything = {theirs: baseline, **named(executions)}
    if in_turn is not None:
        everything[f"{part.in_turn}, which takes the ranks' shares in turn,"] = in_turn
    sheet.count("ranks", len(executions))
    note_watched(everything, sheet)

    bounds = Bounds(part.max_abs_difference, part.max_relative_difference)
    shortest = min(len(execution.series.loss) for execution in everything.values())
    [pair] = compared(part, run)
    found = pair.difference(bounds)
    note_difference(sheet, found, "within", bounds)
    note_distance(executions[0], baseline, sheet)

    same_system = context.same_system(part.candidate, part.baseline)
    # Leave out the shared comparison of batches, because each rank reads only a share. The joined rows of all ranks are
    # compared with the baseline's rows below.
    groups = [Group(everything, own={"comparable"}, same_formats=same_system)]
    if not same_system:
        groups.append(Group(named(executions), own={"comparable"}))
    for group in groups:
        comparison.begin(group)
    _require_as_many(everything, theirs)
    first = readers(rank_steps(executions), arm.model_parallel, sheet)
    _require_joined(first, rank_steps({0: baseline})[0], sheet)
    require_steps(shortest, part.steps, sheet)
    apart = buffers_apart(executions, sheet)
    ours = f"the ranks of {part.candidate}{f', whose buffers end with different values ({apart}),' if apart else ''}"
    require_equal(found, "within", bounds, f"{ours} (their mean) and {theirs}", sheet)
    for group in groups:
        comparison.end(group)
    largest = _require_end(part, executions[0], baseline, sheet)
    after_each_step = ""
    if in_turn is not None:
        _require_in_turn(executions, in_turn, sheet)
        after_each_step = f", and are equal in bits to those of {part.in_turn} after each step"
    if part.ends is not None:
        control = executed(run, part.ends.control)
        after_each_step += require_near_ends(
            part.ends, "rank 0", executions[0], theirs, baseline, control, sheet, same_system=same_system
        )
    _require_equal_ends(executions, sheet)
    return comparison.held(
        f"the mean loss of {len(executions)} ranks and the loss of {theirs} differ by at most {number(found.largest)} "
        f"at all {found.steps} steps, on the same rows; their parameters differ by up to {number(largest)} at the "
        f"end{after_each_step}"
    )


def compared(part: RanksMatch, run: RunEvidence) -> list[Compared]:
    """Return one comparison: the mean of the ranks' losses, compared with the baseline's loss. End the judgement with
    ERROR if a rank is missing."""
    ranks = [view for view in (run, *run.ranks) if part.candidate in view.arms]
    each = [losses(execution) for execution in of_ranks(run, part.candidate, len(ranks)).values()]
    mean = np.mean([series[: min(map(len, each))] for series in each], axis=0)
    name = f"{part.candidate}, mean of {counted(len(each), 'rank')}"
    return [Compared(name, part.baseline, mean, losses(executed(run, part.baseline)))]


def _require_as_many(everything: Mapping[str, ArmEvidence], reference_name: str) -> None:
    """End the judgement with FAIL unless every execution made as many steps as the execution named `reference_name`."""
    reference = everything[reference_name]
    for name, execution in everything.items():
        ours, theirs = len(execution.series.loss), len(reference.series.loss)
        if ours != theirs:
            settle(reasons.UNEQUAL_LENGTHS, f"{name} has {ours} steps, but {reference_name} has {theirs}")


def _require_joined(ranks: Mapping[int, RankSteps], one: RankSteps, sheet: Sheet) -> None:
    """End the judgement with FAIL unless all ranks together read exactly the baseline's rows in each step."""
    for step, whole in enumerate(one.rows):
        if not whole:
            settle(reasons.CAPABILITY_MISSING, "the inputs of the baseline have no rows")
        left = Counter(whole)
        for rank, noted in ranks.items():
            read = Counter(noted.rows[step])
            if read - left:
                _settle_unequal(
                    sheet,
                    step,
                    rank,
                    f"rank {rank} read rows that are not in the baseline's batch, or that had already been read",
                )
            left -= read
        if left:
            _settle_unequal(sheet, step, None, f"no rank read {left.total()} of the baseline's {len(whole)} rows")


def _settle_unequal(sheet: Sheet, step: int, rank: int | None, what: str) -> None:
    sheet.figure("first_unequal_step", step, "step")
    if rank is not None:
        sheet.figure("rank", rank)
    settle(reasons.UNEQUAL_BATCHES, f"at step {step}, {what}")


def _require_end(part: RanksMatch, execution: ArmEvidence, baseline: ArmEvidence, sheet: Sheet) -> float:
    """Return the largest difference between the parameters of rank 0 and of the baseline at the end. End the judgement
    with FAIL if the difference exceeds the claim's bound."""
    require_distance(part.candidate, execution, baseline)
    [found] = [each for each in end_of(execution).differences or [] if each.arm == part.baseline]
    largest = float(found.largest or 0.0)
    if part.max_end_difference is None:
        return largest
    sheet.figure("end_tolerance", part.max_end_difference, "parameter")
    if not sheet.meets("end_max_abs_difference", largest, "at most", part.max_end_difference, "parameter"):
        settle(
            reasons.RANKS_END_APART,
            f"at the end, parameter {found.tensor} differs from the baseline's by up to {number(largest)}, but "
            f"{number(part.max_end_difference)} is allowed",
        )
    return largest


def _require_equal_ends(executions: Mapping[int, ArmEvidence], sheet: Sheet) -> None:
    """End the judgement with FAIL if the final parameters of a rank differ from those of rank 0. This check is needed
    because only the parameters of rank 0 are compared with the baseline.

    A difference that the last update made is found only by this check. A difference from an earlier step would show in
    the losses.
    """
    first = end_of(executions[0]).trainable_digest
    for rank, execution in executions.items():
        if end_of(execution).trainable_digest != first:
            sheet.figure("rank", rank)
            settle(
                reasons.RANKS_DIFFER,
                f"at the end, the parameters of rank {rank} differ from those of rank 0, whose distance to the "
                "baseline was measured",
            )


def _require_in_turn(executions: Mapping[int, ArmEvidence], in_turn: ArmEvidence, sheet: Sheet) -> None:
    """End the judgement with FAIL if a rank's parameters, after any step or at the end, differ in bits from those of
    the arm `in_turn`. This arm is one process that takes the ranks' shares one after the other."""
    [ours] = rank_steps({0: in_turn}).values()
    name, steps = in_turn.start.arm, len(ours.parameters) - 1
    apart = {
        rank: [
            step - 1
            for step, pair in enumerate(zip(noted.parameters, ours.parameters, strict=True))
            if len({*pair}) > 1
        ]
        for rank, noted in rank_steps(executions).items()
    }
    rank, differing = max(apart.items(), key=lambda entry: len(entry[1]))
    sheet.figure("steps_not_in_turn", len(differing), "steps")
    noun = "steps leave parameters of other bits"
    if not sheet.meets("steps_not_in_turn", len(differing), "none", noun=noun, of=steps):
        sheet.figure("first_differing_step", differing[0], "step")
        settle(
            reasons.RANKS_END_APART,
            f"the parameters of rank {rank} differ from those of {name}, which adds up the same parts, after "
            f"{len(differing)} of {steps} steps, first after step {differing[0]}",
        )
    for rank, execution in executions.items():
        if end_of(execution).trainable_digest != end_of(in_turn).trainable_digest:
            settle(
                reasons.RANKS_END_APART,
                f"the parameters of rank {rank} are equal to those of {name} after every step, but differ at the end",
            )
