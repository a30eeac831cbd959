"""`resume`: training that was saved and loaded by another process is the uninterrupted one, in bits or within a bound.

The two halves are joined to one execution, which is judged as any other. Where it differs, the state right after the
load is held against the state that was saved: what is not the same there was not saved, or not loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from harness.contract.kinds.between_steps import Resume
from harness.evidence.arm_records import Loaded, Saved, State
from harness.evidence.run_evidence import ArmEvidence, RunEvidence, Series
from harness.judge import reasons
from harness.judge.comparison import Comparison, Group
from harness.judge.context import Context, end_of, executed, replicas
from harness.judge.end_state import distance, note_distance, note_watched, require_distance
from harness.judge.series import Bounds, Difference, difference, losses, note_difference, require_equal
from harness.judge.sheet import Settled, Sheet, settle, some
from harness.judge.verdict import Judgement

LOOSE = "tensors"  # of which nobody knows whether a step reads them


class Halves(NamedTuple):
    """The candidate up to the save and from the load on, and both as one execution."""

    first: ArmEvidence
    second: ArmEvidence
    whole: ArmEvidence
    saved: Saved
    loaded: Loaded


def judge(part: Resume, context: Context, sheet: Sheet) -> Judgement:
    """Order: steps, capture, what was saved and loaded, equal start and batches, the difference, guards, the ends."""
    run = context.only_run("resume")
    number = 2 if part.baseline is not None else 3
    first, second, *rest = replicas(run, part.candidate, number)
    other = rest[0] if part.baseline is None else executed(run, part.baseline)
    _require_steps(part, second, sheet)
    comparison = Comparison(part, context, sheet)
    comparison.captured(first, second, other)
    halves = join(part.candidate, first, second, save_at=part.save_at, steps_before_load=part.steps_before_load)

    ours, theirs = f"the resumed {part.candidate}", f"the uninterrupted {part.baseline or part.candidate}"
    compared = {theirs: other, ours: halves.whole}
    found = difference(losses(halves.whole), losses(other), "every", Bounds(part.max_abs_difference))
    note_difference(sheet, found, part.equality, Bounds(part.max_abs_difference))
    lost = not_restored(halves)
    note_checkpoint(halves, lost, sheet)
    note_distance(other, halves.whole, sheet)
    note_watched(compared, sheet)
    require_checkpoint(halves)
    same_system = part.baseline is None or context.same_system(part.candidate, part.baseline)
    group = Group(
        compared,
        same_system=same_system,
        same_formats=same_system,
        bits=part.equality == "bitwise",
        apart=in_processes(part.candidate, halves),
    )
    comparison.begin(group)
    _require_equal(part, found, lost, f"{ours} and {theirs}")
    _end(comparison, group, lost)
    ends = ""
    if part.equality == "within":
        require_distance(theirs, other, part.candidate)
        ends = distance(other, part.candidate)
    how = "are equal in bits" if part.equality == "bitwise" else f"differ by at most {found.largest:.3g}"
    return comparison.held(
        f"the losses of {ours} and {theirs} {how} at all {found.steps} steps, the last {len(second.series.loss)} of "
        f"them in another process from what was saved after step {part.save_at - 1}{ends}"
    )


def _require_steps(part: Resume, second: ArmEvidence, sheet: Sheet) -> None:
    steps = len(second.series.loss)
    sheet.count("steps_after_the_load", steps)
    sheet.figure("steps_run", steps, "steps")
    if steps < part.steps:
        settle(reasons.VACUOUS_STEPS, f"{steps} steps after the load were compared, {part.steps} are demanded")


def join(arm: str, first: ArmEvidence, second: ArmEvidence, *, save_at: int, steps_before_load: int) -> Halves:
    """An arm's halves; settles with ERROR where they are not those of the claim."""
    saved, loaded = first.saved, second.loaded
    if saved is None or loaded is None:
        what = "save" if saved is None else "load"
        settle(reasons.EVIDENCE_MISSING, f"there is no record of the {what} of arm {arm}")
    if not saved.steps == len(first.series.loss) == save_at:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"arm {arm} was saved after {saved.steps} steps, of which {len(first.series.loss)} are recorded, and the "
            f"claim says {save_at}",
        )
    if loaded.steps_before != steps_before_load:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"arm {arm} was loaded after {loaded.steps_before} other steps, the claim says {steps_before_load}",
        )
    return Halves(first, second, _joined(first, second), saved, loaded)


def in_processes(arm: str, halves: Halves) -> dict[str, ArmEvidence]:
    """What ran in each process, and what the second one did from the load on: their states are recorded, too."""
    from_load = halves.second.start.model_copy(update={"state": halves.loaded.after})
    return {
        f"{arm} up to the save": halves.first,
        f"{arm} in the process that loaded": halves.second,
        f"{arm} from the load on": replace(halves.second, start=from_load),
    }


def _joined(first: ArmEvidence, second: ArmEvidence) -> ArmEvidence:
    """One execution that starts as the first half and ends as the second."""
    called = end_of(first).steps_called + end_of(second).steps_called
    skipped = end_of(first).skipped_steps + end_of(second).skipped_steps
    end = end_of(second).model_copy(update={"steps_called": called, "skipped_steps": skipped})
    one, two = first.series, second.series
    series = Series(
        np.concatenate([one.loss, two.loss]),
        [*one.batch_digest, *two.batch_digest],
        np.concatenate([one.clip_active_groups, two.clip_active_groups]),
        np.concatenate([one.tokens, two.tokens]),
        {name: np.concatenate([one.metrics[name], two.metrics[name]]) for name in one.metrics if name in two.metrics},
    )
    return replace(second, start=first.start, end=end, series=series)


def not_restored(halves: Halves) -> list[tuple[str, str]]:
    """Category and name of what was in the saved state and is not the same right after the load."""
    saved: State | None = end_of(halves.first).state
    after = halves.loaded.after.digests
    return [
        (category, name)
        for category, names in sorted((saved.digests if saved is not None else {}).items())
        for name, digest in sorted(names.items())
        if category != LOOSE and after.get(category, {}).get(name) != digest
    ]


def note_checkpoint(halves: Halves, lost: list[tuple[str, str]], sheet: Sheet) -> None:
    """How large it was, and what of it was not restored."""
    sheet.figure("checkpoint_files", halves.saved.files, "files")
    sheet.figure("checkpoint_bytes", halves.saved.bytes, "bytes")
    sheet.figure("not_restored_tensors", len(lost), "tensors")
    sheet.figure("not_restored", ", ".join(dict.fromkeys(category for category, _ in lost)))
    sheet.figure("first_not_restored", " ".join(lost[0]) if lost else None)


def require_checkpoint(halves: Halves) -> None:
    """Settle unless another process loaded, from something, what the first one had trained."""
    saved, loaded, first = halves.saved, halves.loaded, halves.first
    if saved.process == loaded.process:
        settle(reasons.VACUOUS_ONE_PROCESS, f"process {saved.process} saved, and loaded what it had saved")
    if saved.files == 0 or saved.bytes == 0:
        settle(reasons.VACUOUS_NOTHING_SAVED, f"the checkpoint holds {saved.files} files and {saved.bytes} bytes")
    trained = end_of(first).trainable_digest
    if trained == first.start.trainable_digest:
        settle(
            reasons.VACUOUS_PARAMETERS_UNCHANGED,
            f"the {first.start.trainable_tensors} trainable tensors were saved as they had begun",
        )
    if loaded.trainable_before == trained:
        settle(reasons.VACUOUS_NOTHING_TO_LOAD, "before the load the parameters were those that were saved")
    if loaded.trainable_after == loaded.trainable_before:
        settle(reasons.NOTHING_LOADED, "the load left every parameter as it was before")


def _require_equal(part: Resume, found: Difference, lost: list[tuple[str, str]], names: str) -> None:
    """Settle FAIL where the losses differ; as not restored where bits are demanded and the load is to blame."""
    try:
        require_equal(found, part.equality, Bounds(part.max_abs_difference), names, _in_words(lost))
    except Settled as settled:
        after = found.first_differing is not None and found.first_differing >= part.save_at
        if part.equality == "bitwise" and lost and after:
            settle(reasons.NOT_RESTORED, settled.message)
        raise


def _end(comparison: Comparison, group: Group, lost: list[tuple[str, str]]) -> None:
    """End the comparison; ends that differ were not restored where the load is to blame."""
    try:
        comparison.end(group)
    except Settled as settled:
        if lost and settled.reason == reasons.END_DIFFERS:
            settle(reasons.NOT_RESTORED, f"{settled.message}{_in_words(lost)}")
        raise


def _in_words(lost: list[tuple[str, str]]) -> str:
    if not lost:
        return "; right after the load its state was the one that was saved"
    named = some([" ".join(each) for each in lost])
    return f"; right after the load {len(lost)} tensors were not as they were saved: {named}"


def halves_of(part: Resume, run: RunEvidence) -> tuple[Halves, ArmEvidence] | None:
    """The candidate's halves, and the uninterrupted arm; None where they are not all there. For the report."""
    mine = run.arms.get(part.candidate, [])
    others = run.arms.get(part.baseline, [])[:1] if part.baseline is not None else mine[2:3]
    if len(mine) < 2 or not others or mine[0].end is None or mine[1].end is None:
        return None
    first, second = mine[:2]
    if first.saved is None or second.loaded is None:
        return None
    return Halves(first, second, _joined(first, second), first.saved, second.loaded), others[0]
