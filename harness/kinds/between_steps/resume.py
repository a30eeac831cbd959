"""Judge `resume`: training saved and loaded by other processes equals the uninterrupted one, in bits or within a bound.

The parts are joined to one execution, which is judged as any other. Where it differs, the state right after each load
is compared with the saved state: whatever differs there was not saved, or not loaded.
"""

from __future__ import annotations

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.compared_series import Compared
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, executed, replicas
from harness.judging.end_state import distance, note_distance, note_watched, require_distance
from harness.judging.series import Bounds, Difference, losses, note_difference, require_equal
from harness.judging.sheet import Settled, Sheet, settle
from harness.judging.verdict import Judgement
from harness.kinds.between_steps.model import Resume
from harness.kinds.between_steps.training_chain import (
    Chain,
    as_one,
    in_processes,
    in_words,
    join,
    joints_of,
    note_checkpoint,
    require_checkpoints,
)


def judge(part: Resume, context: Context, sheet: Sheet) -> Judgement:
    """Judge in this order: steps, capture, saves and loads, equal start and batches, the difference, guards, ends."""
    run = context.only_run("resume")
    number = len(part.saves) + 1
    parts = replicas(run, part.candidate, number if part.baseline is not None else number + 1)
    other = parts.pop() if part.baseline is None else executed(run, part.baseline)
    _require_steps(part, parts[-1], sheet)
    comparison = Comparison(part, context, sheet)
    comparison.captured(*parts, other)
    chain = join(part.candidate, parts, saves=part.saves, steps_before_load=part.steps_before_load)

    ours, theirs = f"the resumed {part.candidate}", f"the uninterrupted {part.baseline or part.candidate}"
    both = {theirs: other, ours: chain.whole}
    found = _pair(part, chain, other).difference(Bounds(part.max_abs_difference))
    note_difference(sheet, found, part.equality, Bounds(part.max_abs_difference))
    note_checkpoint(chain.worst, sheet)
    note_distance(other, chain.whole, sheet)
    note_watched(both, sheet)
    require_checkpoints(chain)
    same_system = part.baseline is None or context.same_system(part.candidate, part.baseline)
    group = Group(
        both,
        same_system=same_system,
        same_formats=same_system,
        bits=part.equality == "bitwise",
        apart=in_processes(part.candidate, chain),
    )
    comparison.begin(group)
    _require_equal(part, found, chain, f"{ours} and {theirs}", sheet)
    _end(comparison, group, chain)
    ends = ""
    if part.equality == "within":
        require_distance(theirs, other, chain.whole)
        ends = distance(other, chain.whole)
    how = "are equal in bits" if part.equality == "bitwise" else f"differ by at most {found.largest:.3g}"
    after = len(parts[-1].series.loss)
    return comparison.held(
        f"the losses of {ours} and {theirs} {how} at all {found.steps} steps, the last {after} of "
        f"them in another process from what was saved after step {_in_words(part)}{ends}"
    )


def compared(part: Resume, run: RunEvidence) -> list[Compared]:
    """Return the losses of the resumed training and of the uninterrupted one; nothing where a part is missing."""
    found = chain_of(part, run)
    return [] if found is None else [_pair(part, *found)]


def _pair(part: Resume, chain: Chain, other: ArmEvidence) -> Compared:
    names = f"{part.candidate}, resumed", f"{part.baseline or part.candidate}, uninterrupted"
    return Compared(*names, losses(chain.whole), losses(other))


def _in_words(part: Resume) -> str:
    *earlier, last = (str(at - 1) for at in part.saves)
    return f"{last}, which went on from what was saved after step {' and '.join(earlier)}" if earlier else last


def _require_steps(part: Resume, second: ArmEvidence, sheet: Sheet) -> None:
    steps = len(second.series.loss)
    sheet.count("steps_after_the_load", steps)
    sheet.figure("steps_run", steps, "steps")
    if not sheet.meets("steps_after_the_load", steps, "at least", part.steps, "steps", beside=True):
        settle(reasons.VACUOUS_STEPS, f"{steps} steps after the load were compared, {part.steps} are demanded")


def _require_equal(part: Resume, found: Difference, chain: Chain, names: str, sheet: Sheet) -> None:
    """Settle FAIL where the losses differ, as `not_restored` where bits are demanded and a load is to blame."""
    losing = chain.lost_before(found.first_differing)
    words = in_words(losing or chain.lost_before(None), of_several=len(chain.joints) > 1)
    try:
        require_equal(found, part.equality, Bounds(part.max_abs_difference), names, sheet, words)
    except Settled as settled:
        if part.equality == "bitwise" and losing is not None and found.first_differing is not None:
            settle(reasons.NOT_RESTORED, settled.message)
        raise


def _end(comparison: Comparison, group: Group, chain: Chain) -> None:
    """End the comparison. Where a load is to blame for ends that differ, settle FAIL `not_restored`."""
    try:
        comparison.end(group)
    except Settled as settled:
        losing = chain.lost_before(None)
        if losing is not None and settled.reason == reasons.END_DIFFERS:
            words = in_words(losing, of_several=len(chain.joints) > 1)
            settle(reasons.NOT_RESTORED, f"{settled.message}{words}")
        raise


def chain_of(part: Resume, run: RunEvidence) -> tuple[Chain, ArmEvidence] | None:
    """Return the candidate's parts and the uninterrupted arm, for the report; None where some of them are missing."""
    number = len(part.saves) + 1
    mine = run.arms.get(part.candidate, [])
    others = run.arms.get(part.baseline, [])[:1] if part.baseline is not None else mine[number : number + 1]
    parts = mine[:number]
    if len(parts) < number or not others or any(each.end is None for each in parts):
        return None
    joints = joints_of(parts)
    return None if joints is None else (Chain(as_one(parts), joints), others[0])
