"""Judge `resume`: a training resumed by other processes equals the uninterrupted one, in bits or within a bound.

The parts of the training, one from each process, are joined to one execution. This execution is compared with the
uninterrupted training. If the two trainings differ, the state right after each load is compared with the saved state.
Tensors that differ between these two states were not saved or not loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from harness.evidence.arm_records import Loaded, Saved, State
from harness.evidence.run_evidence import ArmEvidence, RunEvidence, Series
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, end_of, executed, replicas
from harness.judging.end_state import distance, note_distance, note_watched, require_distance
from harness.judging.series import Bounds, Compared, Difference, losses, note_difference, require_equal
from harness.judging.sheet import Settled, Sheet, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.between_steps.model import Resume

# Each process executed a part of the training. The following functions join these parts to one execution, and find the
# tensors that a load did not restore.

LOOSE = "tensors"  # category of tensors for which it is unknown whether a step reads them


class Joint(NamedTuple):
    """A save and its load (a joint), with the parts of the training before the save and after the load."""

    first: ArmEvidence
    second: ArmEvidence
    saved: Saved
    loaded: Loaded

    @property
    def lost(self) -> list[tuple[str, str]]:
        """Return category and name of each saved tensor, outside `LOOSE`, that is not restored right after the load."""
        saved: State | None = end_of(self.first).state
        after = self.loaded.after.digests
        return [
            (category, name)
            for category, names in sorted((saved.digests if saved is not None else {}).items())
            for name, digest in sorted(names.items())
            if category != LOOSE and after.get(category, {}).get(name) != digest
        ]


class Chain(NamedTuple):
    """An interrupted training: all parts joined to one execution, and the joints (each a save and a load) between
    them."""

    whole: ArmEvidence
    joints: Sequence[Joint]

    @property
    def worst(self) -> Joint:
        """Return the joint whose load left the most tensors unrestored, or the first of several such joints."""
        return max(self.joints, key=lambda joint: len(joint.lost))

    def lost_before(self, step: int | None) -> Joint | None:
        """Return the last joint before step `step` whose load did not restore a tensor, or None if there is none.

        step: None to search all joints.
        """
        losing = [each for each in self.joints if each.lost and (step is None or each.saved.steps <= step)]
        return losing[-1] if losing else None


def joints_of(parts: Sequence[ArmEvidence]) -> list[Joint] | None:
    """Return the joints between the parts, or None if a record of a save or of a load is missing."""
    found = [
        Joint(first, second, first.saved, second.loaded)
        for first, second in pairwise(parts)
        if first.saved is not None and second.loaded is not None
    ]
    return found if len(found) == len(parts) - 1 else None


def join(arm: str, parts: Sequence[ArmEvidence], *, saves: Sequence[int], steps_before_load: int) -> Chain:
    """Return the parts of an arm joined to one execution. End the judgement with ERROR if a save or a load is missing,
    or was made at another step than the claim names."""
    joints = joints_of(parts)
    if joints is None:
        what = "save" if any(part.saved is None for part in parts[:-1]) else "load"
        settle(reasons.EVIDENCE_MISSING, f"there is no record of the {what} of arm {arm}")
    for joint, begun, at in zip(joints, [0, *saves], saves, strict=False):
        steps = len(joint.first.series.loss)
        if not joint.saved.steps == begun + steps == at:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"arm {arm} was saved after {joint.saved.steps} steps, and {begun + steps} steps are recorded, but the "
                f"claim's `save_at` states {at}",
            )
        before = steps_before_load if at == saves[-1] else 0
        if joint.loaded.steps_before != before:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"the process that loaded arm {arm} made {joint.loaded.steps_before} steps before the load, but the "
                f"claim states {before}",
            )
    return Chain(as_one(parts), joints)


def as_one(parts: Sequence[ArmEvidence]) -> ArmEvidence:
    """Return the parts of a training joined to one execution. This execution has the start state of the first part, the
    end state of the last part, and the losses, metrics and batches of all parts."""
    ends, series = [end_of(part) for part in parts], [part.series for part in parts]
    called, skipped = sum(end.steps_called for end in ends), sum(end.skipped_steps for end in ends)
    names = [name for name in series[0].metrics if all(name in each.metrics for each in series)]
    joined = Series(
        np.concatenate([each.loss for each in series]),
        [digest for each in series for digest in each.batch_digest],
        np.concatenate([each.clip_active_groups for each in series]),
        np.concatenate([each.tokens for each in series]),
        {name: np.concatenate([each.metrics[name] for each in series]) for name in names},
    )
    end = ends[-1].model_copy(update={"steps_called": called, "skipped_steps": skipped})
    return replace(parts[-1], start=parts[0].start, end=end, series=joined)


def in_processes(arm: str, chain: Chain) -> dict[str, ArmEvidence]:
    """Return the executions to check, by their names in messages. There is one execution for each process. For each
    load there is also an execution that begins with the state right after the load."""
    found = {f"{arm} up to the save": chain.joints[0].first}
    for joint in chain.joints:
        of_several = f" at step {joint.saved.steps}" if len(chain.joints) > 1 else ""
        from_load = joint.second.start.model_copy(update={"state": joint.loaded.after})
        found[f"{arm} in the process that loaded{of_several}"] = joint.second
        found[f"{arm} from the load on{of_several}"] = replace(joint.second, start=from_load)
    return found


def note_checkpoint(joint: Joint, sheet: Sheet) -> None:
    """Add to the verdict's figures (`sheet`) the checkpoint's size, and how many tensors its load did not restore."""
    lost = joint.lost
    sheet.figure("checkpoint_files", joint.saved.files, "files")
    sheet.figure("checkpoint_bytes", joint.saved.bytes, "bytes")
    sheet.figure("not_restored_tensors", len(lost), "tensors")
    sheet.figure("not_restored", ", ".join(dict.fromkeys(category for category, _ in lost)))
    sheet.figure("first_not_restored", " ".join(lost[0]) if lost else None)


def require_checkpoints(chain: Chain) -> None:
    """End the judgement with FAIL unless each joint (a save and its load) can show a fault. Another process than the
    saving one must have loaded the checkpoint, and the checkpoint must not be empty. The saved parameters must have
    been trained. Before the load, the parameters must have differed from the saved ones, and the load must have changed
    them. This function does not check that the loaded values are the saved values."""
    for joint in chain.joints:
        saved, loaded, first = joint.saved, joint.loaded, joint.first
        if saved.process == loaded.process:
            settle(reasons.VACUOUS_ONE_PROCESS, f"process {saved.process} both saved and loaded the checkpoint")
        if saved.files == 0 or saved.bytes == 0:
            settle(reasons.VACUOUS_NOTHING_SAVED, f"the checkpoint holds {saved.files} files and {saved.bytes} bytes")
        trained = end_of(first).trainable_digest
        if trained == first.start.trainable_digest:
            settle(
                reasons.VACUOUS_PARAMETERS_UNCHANGED,
                f"the {first.start.trainable_tensors} trainable tensors still had their initial values when they were "
                "saved",
            )
        if loaded.trainable_before == trained:
            settle(reasons.VACUOUS_NOTHING_TO_LOAD, "the parameters already equalled the saved ones before the load")
        if loaded.trainable_after == loaded.trainable_before:
            settle(reasons.NOTHING_LOADED, "the load left every parameter as it was before")


def in_words(joint: Joint | None, *, of_several: bool) -> str:
    """Return the last clause of a message, which names the tensors that a load did not restore. joint: None if every
    load restored all tensors."""
    if joint is None:
        which = "each" if of_several else "the"
        return f"; right after {which} load, the state was equal to the saved state"
    named = some([" ".join(each) for each in joint.lost])
    which = f"the load of the state saved after {joint.saved.steps} steps" if of_several else "the load"
    return f"; right after {which}, the values of {len(joint.lost)} tensors differed from the saved state: {named}"


def judge(part: Resume, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: enough steps, a replayed capture, saves and
    loads, equal start and batches, the difference between the losses, the guards, the end states."""
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
        f"the losses of {ours} and {theirs} {how} at all {found.steps} steps, of which the last {after} were made in "
        f"another process from the state saved after step {_in_words(part)}{ends}"
    )


def compared(part: Resume, run: RunEvidence) -> list[Compared]:
    """Return the losses of the resumed and the uninterrupted training; empty if a part is missing."""
    found = chain_of(part, run)
    return [] if found is None else [_pair(part, *found)]


def _pair(part: Resume, chain: Chain, other: ArmEvidence) -> Compared:
    names = f"{part.candidate}, resumed", f"{part.baseline or part.candidate}, uninterrupted"
    return Compared(*names, losses(chain.whole), losses(other))


def _in_words(part: Resume) -> str:
    *earlier, last = (str(at - 1) for at in part.saves)
    return (
        f"{last}, whose process had resumed from the state saved after step {' and '.join(earlier)}"
        if earlier
        else last
    )


def _require_steps(part: Resume, second: ArmEvidence, sheet: Sheet) -> None:
    steps = len(second.series.loss)
    sheet.count("steps_after_the_load", steps)
    sheet.figure("steps_run", steps, "steps")
    if not sheet.meets("steps_after_the_load", steps, "at least", part.steps, "steps", beside=True):
        settle(reasons.VACUOUS_STEPS, f"{steps} steps after the load were compared, but {part.steps} are required")


def _require_equal(part: Resume, found: Difference, chain: Chain, names: str, sheet: Sheet) -> None:
    """End the judgement with FAIL if losses differ. If equal bits are required, and a load before the first differing
    step did not restore a tensor, the reason is `not_restored`."""
    losing = chain.lost_before(found.first_differing)
    words = in_words(losing or chain.lost_before(None), of_several=len(chain.joints) > 1)
    try:
        require_equal(found, part.equality, Bounds(part.max_abs_difference), names, sheet, words)
    except Settled as settled:
        if part.equality == "bitwise" and losing is not None and found.first_differing is not None:
            settle(reasons.NOT_RESTORED, settled.message)
        raise


def _end(comparison: Comparison, group: Group, chain: Chain) -> None:
    """Make the last of the checks that all kinds share. If the end states differ, and a load did not restore a tensor,
    the judgement ends with FAIL and the reason `not_restored`."""
    try:
        comparison.end(group)
    except Settled as settled:
        losing = chain.lost_before(None)
        if losing is not None and settled.reason == reasons.END_DIFFERS:
            words = in_words(losing, of_several=len(chain.joints) > 1)
            settle(reasons.NOT_RESTORED, f"{settled.message}{words}")
        raise


def chain_of(part: Resume, run: RunEvidence) -> tuple[Chain, ArmEvidence] | None:
    """Return the candidate's joined parts and the execution without interruption, for the report. Return None if the
    evidence of a part or of this execution is incomplete."""
    number = len(part.saves) + 1
    mine = run.arms.get(part.candidate, [])
    others = run.arms.get(part.baseline, [])[:1] if part.baseline is not None else mine[number : number + 1]
    parts = mine[:number]
    if len(parts) < number or not others or any(each.end is None for each in parts):
        return None
    joints = joints_of(parts)
    return None if joints is None else (Chain(as_one(parts), joints), others[0])
