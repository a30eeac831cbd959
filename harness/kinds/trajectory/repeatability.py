"""Judge `repeatability`: N runs of one arm with one seed agree, in bits or within a bound."""

from __future__ import annotations

import math

from harness.evidence.run_evidence import RunEvidence
from harness.judging.compared_series import Compared
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, replicas
from harness.judging.end_state import distance, note_distance, note_watched, require_distance
from harness.judging.series import Bounds, Difference, losses, note_difference, require_equal
from harness.judging.sheet import Sheet, number
from harness.judging.verdict import Judgement
from harness.kinds.trajectory.model import Repeatability


def judge(part: Repeatability, context: Context, sheet: Sheet) -> Judgement:
    """Compare every repetition with the first run, and report the worst difference."""
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
    how = "equal in bits" if part.equality == "bitwise" else f"within {number(found[worst].largest)} of the first"
    return comparison.held(
        f"{len(executions)} runs of {part.candidate} are {how} at all {found[worst].steps} steps{ends}"
    )


def compared(part: Repeatability, run: RunEvidence) -> list[Compared]:
    """Return the losses of every repetition with those of the first run; settle where a run is missing."""
    first, *others = (losses(each) for each in replicas(run, part.candidate, part.runs))
    names = [f"{part.candidate}, run {place}" for place in range(part.runs)]
    return [Compared(name, names[0], each, first) for name, each in zip(names[1:], others, strict=True)]


def _badness(found: Difference) -> tuple[bool, bool, float, int]:
    # a NaN difference compares as nothing; it is the worst
    return (math.isnan(found.largest), found.first_exceeding is not None, found.largest, found.differing)
