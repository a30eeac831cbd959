"""Join a training in parts, each in its own process, to one execution, and find what each load restored wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from harness.evidence.arm_records import Loaded, Saved, State
from harness.evidence.run_evidence import ArmEvidence, Series
from harness.judging import reasons
from harness.judging.context import end_of
from harness.judging.sheet import Sheet, settle, some

LOOSE = "tensors"  # of which it is not known whether a step reads them


class Joint(NamedTuple):
    """One save, with the part that ended with it, and its load, with the part that began with it."""

    first: ArmEvidence
    second: ArmEvidence
    saved: Saved
    loaded: Loaded

    @property
    def lost(self) -> list[tuple[str, str]]:
        """Return category and name of each saved tensor that is not the same right after the load."""
        saved: State | None = end_of(self.first).state
        after = self.loaded.after.digests
        return [
            (category, name)
            for category, names in sorted((saved.digests if saved is not None else {}).items())
            for name, digest in sorted(names.items())
            if category != LOOSE and after.get(category, {}).get(name) != digest
        ]


class Chain(NamedTuple):
    """All parts as one execution, and where they meet."""

    whole: ArmEvidence
    joints: Sequence[Joint]

    @property
    def worst(self) -> Joint:
        """Return the joint at which most was lost, the first one of several."""
        return max(self.joints, key=lambda joint: len(joint.lost))

    def lost_before(self, step: int | None) -> Joint | None:
        """Return the last joint before this step at which something was lost; before the end where the step is None."""
        losing = [each for each in self.joints if each.lost and (step is None or each.saved.steps <= step)]
        return losing[-1] if losing else None


def joints_of(parts: Sequence[ArmEvidence]) -> list[Joint] | None:
    """Return where the parts meet; None where a record of a save or of a load is missing."""
    found = [
        Joint(first, second, first.saved, second.loaded)
        for first, second in pairwise(parts)
        if first.saved is not None and second.loaded is not None
    ]
    return found if len(found) == len(parts) - 1 else None


def join(arm: str, parts: Sequence[ArmEvidence], *, saves: Sequence[int], steps_before_load: int) -> Chain:
    """Return the parts of an arm as one execution; settle ERROR where they are not the parts that the claim names."""
    joints = joints_of(parts)
    if joints is None:
        what = "save" if any(part.saved is None for part in parts[:-1]) else "load"
        settle(reasons.EVIDENCE_MISSING, f"there is no record of the {what} of arm {arm}")
    for joint, begun, at in zip(joints, [0, *saves], saves, strict=False):
        steps = len(joint.first.series.loss)
        if not joint.saved.steps == begun + steps == at:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"arm {arm} was saved after {joint.saved.steps} steps, of which {begun + steps} are recorded, and the "
                f"claim says {at}",
            )
        before = steps_before_load if at == saves[-1] else 0
        if joint.loaded.steps_before != before:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"arm {arm} was loaded after {joint.loaded.steps_before} other steps, the claim says {before}",
            )
    return Chain(as_one(parts), joints)


def as_one(parts: Sequence[ArmEvidence]) -> ArmEvidence:
    """Return one execution that starts as the first part and ends as the last."""
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
    """Return what ran in each process, and what ran from its load on, as the states at both were recorded."""
    found = {f"{arm} up to the save": chain.joints[0].first}
    for joint in chain.joints:
        of_several = f" at step {joint.saved.steps}" if len(chain.joints) > 1 else ""
        from_load = joint.second.start.model_copy(update={"state": joint.loaded.after})
        found[f"{arm} in the process that loaded{of_several}"] = joint.second
        found[f"{arm} from the load on{of_several}"] = replace(joint.second, start=from_load)
    return found


def note_checkpoint(joint: Joint, sheet: Sheet) -> None:
    """Note how large a checkpoint was, and what of it was not restored."""
    lost = joint.lost
    sheet.figure("checkpoint_files", joint.saved.files, "files")
    sheet.figure("checkpoint_bytes", joint.saved.bytes, "bytes")
    sheet.figure("not_restored_tensors", len(lost), "tensors")
    sheet.figure("not_restored", ", ".join(dict.fromkeys(category for category, _ in lost)))
    sheet.figure("first_not_restored", " ".join(lost[0]) if lost else None)


def require_checkpoints(chain: Chain) -> None:
    """Settle unless each load was by another process, and loaded something that the process before it had trained."""
    for joint in chain.joints:
        saved, loaded, first = joint.saved, joint.loaded, joint.first
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
            settle(reasons.VACUOUS_NOTHING_TO_LOAD, "the parameters already equalled the saved ones before the load")
        if loaded.trainable_after == loaded.trainable_before:
            settle(reasons.NOTHING_LOADED, "the load left every parameter as it was before")


def in_words(joint: Joint | None, *, of_several: bool) -> str:
    """Return what a message adds: the tensors that a load restored wrongly. None: each load restored all."""
    if joint is None:
        which = "each" if of_several else "the"
        return f"; right after {which} load its state was the one that was saved"
    named = some([" ".join(each) for each in joint.lost])
    which = f"the load of what was saved after {joint.saved.steps} steps" if of_several else "the load"
    return f"; right after {which} {len(joint.lost)} tensors were not as they were saved: {named}"
