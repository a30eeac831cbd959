"""Judge `evaluation`: evaluations between an arm's steps do not change any bit of the arm's training.

If the claim names a plain arm, the numbers that evaluations return are also compared with those of the plain arm. This
comparison finds an evaluation that replays an outdated graph, or that reads weights before they are averaged: such an
evaluation returns wrong numbers, although it does not change the training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.evidence.arm_records import Evaluated
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, executed, replicas
from harness.judging.end_state import note_watched
from harness.judging.series import EXACT, Compared, losses, require_equal
from harness.judging.sheet import Sheet, number, require_steps, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.between_steps.model import Evaluation

GENERATORS = "generators"  # the category that every record of state must contain, because every process has generators


def judge(part: Evaluation, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: enough steps, a replayed capture, equal
    states before and after each evaluation, equal batches, equal losses, the returned numbers, the guards, the end
    states."""
    run = context.only_run("evaluation")
    without, evaluated = replicas(run, part.candidate, 2)
    require_steps(min(len(each.series.loss) for each in (without, evaluated)), part.steps, sheet)
    comparison = Comparison(part, context, sheet)
    comparison.captured(without, evaluated)
    evaluations = _require_evaluations(part, evaluated)
    shown = showing(evaluations)
    sheet.count("evaluations", len(evaluations))
    sheet.figure("evaluations_showing_something", shown, "evaluations")

    ours, theirs = f"{part.candidate} with evaluations", f"{part.candidate} without"
    both = {theirs: without, ours: evaluated}
    [pair] = compared(part, run)
    found = pair.difference(EXACT)
    sheet.count("steps", found.steps)
    sheet.figure("steps_differing", found.differing, "steps")
    sheet.figure("first_differing_step", found.first_differing, "step")
    sheet.figure("max_abs_difference", found.largest, "loss")
    note_watched(both, sheet)
    plain = {} if part.plain is None else {f"plain {part.plain}": executed(run, part.plain)}
    _require_unchanged(evaluations, sheet)
    groups = [Group(both)]
    if part.plain is not None:
        same_system = context.same_system(part.candidate, part.plain)
        roles = dict.fromkeys(plain, "plain")
        groups.append(Group({ours: evaluated, **plain}, roles, same_formats=same_system, more_in=ours))
    for group in groups:
        comparison.begin(group)
    require_equal(found, "bitwise", EXACT, f"{ours} and {theirs}", sheet)
    for each in evaluations:
        for name, value in each.values.items():
            if not math.isfinite(value):
                sheet.figure("first_non_finite_evaluation", each.steps, "steps")
                settle(reasons.EVALUATION_NOT_FINITE, f"after {each.steps} steps, the evaluation's {name} is {value}")
    if not sheet.meets("evaluations_showing_something", shown, "at least", part.evaluations, "evaluations"):
        settle(
            reasons.VACUOUS_EVALUATIONS,
            f"{shown} of {len(evaluations)} evaluations returned a number different from the evaluation before, but "
            f"{part.evaluations} are required",
        )
    returned = ""
    for execution in plain.values():
        returned = _require_values(part, evaluations, execution, sheet)
    for group in groups:
        comparison.end(group)
    return comparison.held(
        f"{part.candidate} with {len(evaluations)} evaluations, one after every {part.every} steps, is equal in bits "
        f"to the same arm without evaluations, in {found.steps} steps and at the end{returned}"
    )


def compared(part: Evaluation, run: RunEvidence) -> list[Compared]:
    """Return one comparison: the arm's losses with evaluations, compared with its losses without evaluations. End the
    judgement with ERROR if one of these two executions is missing."""
    return evaluated_and_not(replicas(run, part.candidate, 2))


def evaluated_and_not(executions: Sequence[ArmEvidence]) -> list[Compared]:
    """Return a list with one comparison of an arm's two executions: the losses of the second (with evaluations) are
    compared with the losses of the first (without evaluations)."""
    without, evaluated = (losses(each) for each in executions[:2])
    return [Compared("with evaluations", "without evaluations", evaluated, without)]


def _require_values(part: Evaluation, evaluations: Sequence[Evaluated], plain: ArmEvidence, sheet: Sheet) -> str:
    """End the judgement with FAIL if most evaluations return other numbers than the plain arm's evaluations. Otherwise
    return a clause for the verdict's message with the typical difference between the numbers."""
    bound = part.max_relative_difference or 0.0
    theirs = _require_evaluations(part, plain)
    named = {name for each in evaluations for name in each.values}
    other = sorted(named ^ {name for each in theirs for name in each.values})
    if other:
        settle(
            reasons.EVALUATIONS_DIFFER,
            f"the evaluations of {part.candidate} and {part.plain} return numbers with different names: {some(other)}",
        )
    apart = {name: list(_apart(name, evaluations, theirs)) for name in sorted(named)}
    # Take the median, so that the bound must hold for at least half of the evaluations.
    typical = {name: sorted(found)[(len(found) - 1) // 2] for name, found in apart.items()}
    worst = max(typical, key=lambda name: typical[name])
    sheet.figure("evaluated_relative_difference", typical[worst])
    sheet.figure("evaluated_relative_difference_of", worst)
    if not sheet.meets("evaluated_relative_difference", typical[worst], "at most", bound):
        beyond = [index for index, found in enumerate(apart[worst]) if found > bound]
        first = evaluations[beyond[0]]
        settle(
            reasons.EVALUATIONS_DIFFER,
            f"in {len(beyond)} of {len(evaluations)} evaluations, {worst} differs by more than {number(bound)} of the "
            f"value of {part.plain}; in the first of them, after {first.steps} steps, it is {_shown(first, worst)} "
            f"instead of {_shown(theirs[beyond[0]], worst)}",
        )
    return (
        f"; in at least half of the evaluations, the returned numbers are within {number(typical[worst])} (relative) "
        f"of those of {part.plain}"
    )


def _shown(evaluation: Evaluated, name: str) -> str:
    value = evaluation.values.get(name)
    return "nothing" if value is None else f"{value:.6g}"


def _apart(name: str, ours: Sequence[Evaluated], theirs: Sequence[Evaluated]) -> Iterator[float]:
    """Yield for each evaluation the relative difference of the number `name` from the plain arm's number. Yield
    infinity if only one arm returned this number."""
    for one, other in zip(ours, theirs, strict=True):
        mine, plain = one.values.get(name), other.values.get(name)
        if mine is None or plain is None:
            yield 0.0 if mine is plain else math.inf
        elif mine == plain:
            yield 0.0
        else:
            yield abs(mine - plain) / abs(plain) if plain and math.isfinite(plain) else math.inf


def showing(evaluations: Sequence[Evaluated]) -> int:
    """Return how many evaluations returned at least one number that differs from the previous evaluation's number."""
    before: dict[str, float] = {}
    shown = 0
    for each in evaluations:
        shown += any(before.get(name) != value for name, value in each.values.items())
        before = each.values
    return shown


def _require_evaluations(part: Evaluation, execution: ArmEvidence) -> list[Evaluated]:
    """Return the evaluations. End the judgement with ERROR if one is missing or lacks the state before or after it."""
    found = execution.evaluations
    due = list(range(part.every, len(execution.series.loss) + 1, part.every))
    if [each.steps for each in found] != due:
        settle(
            reasons.EVIDENCE_MISSING,
            f"{len(due)} evaluations, one after every {part.every} steps, are due, but {len(found)} are recorded or "
            "their steps differ",
        )
    for each in found:
        if each.before.keys() != each.after.keys() or GENERATORS not in each.before:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"the state recorded before and after the evaluation at {each.steps} steps is incomplete",
            )
    return found


def _require_unchanged(evaluations: Sequence[Evaluated], sheet: Sheet) -> None:
    changed = [each for each in evaluations if each.before != each.after]
    if not changed:
        return
    first = changed[0]
    kinds = [category for category in first.before if first.before[category] != first.after[category]]
    sheet.figure("first_changed_after", first.steps, "steps")
    sheet.figure("changed", ", ".join(sorted(kinds)))
    named = f": {some(first.changed)}" if first.changed else ""
    settle(
        reasons.EVALUATION_CHANGED_STATE,
        f"{len(changed)} of {len(evaluations)} evaluations changed state that training reads; the first of them, after "
        f"{first.steps} steps, changed {' and '.join(sorted(kinds))}{named}",
    )
