"""A clip that one of two arms alone has, and that changed no gradient: its absence shows in no number."""

from __future__ import annotations

from harness.evidence.run_evidence import ArmEvidence
from harness.judge import reasons
from harness.judge.context import end_of
from harness.judge.sheet import Sheet


def require_equal_clips(ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence, sheet: Sheet) -> None:
    """Leave the claim open where one arm was seen to bound its gradients to no effect, and the other one surely not.

    A bound that acted shows in the numbers that are compared, whatever was seen of the other arm.
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
            f"{name} bounds its gradients (`{clip.operator}`), which changed none in the watched steps, and "
            f"{without[0]} does not: nothing compared shows whether that bound is missing. Lower it in both arms, or "
            "give them batches whose gradients reach it",
        )
