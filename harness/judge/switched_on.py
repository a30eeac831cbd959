"""Whether an arm that is to be optimized is another step than the plain one at all."""

from __future__ import annotations

from harness.contract.kinds.training import TrajectoryMatch
from harness.evidence.run_evidence import ArmEvidence
from harness.judge import reasons
from harness.judge.context import Context, end_of
from harness.judge.end_state import differing
from harness.judge.series import EXACT, difference, losses
from harness.judge.sheet import Sheet

SAME = "the same operators on the same types, shapes and strides, and equal bits in every loss and all state"


def note_same_step(
    part: TrajectoryMatch, context: Context, candidate: ArmEvidence, baseline: ArmEvidence, sheet: Sheet
) -> str:
    """Return what a sentence says of a candidate that is the baseline's step once more; "" of any other one.

    Leaves the claim open where the claim demands another step, and none was seen.
    """
    ours, theirs = end_of(candidate).step_form, end_of(baseline).step_form
    equal = _equal_bits(candidate, baseline)
    if part.switched_on and equal and (None in (ours, theirs) or ours == theirs):
        sheet.leave_open(
            reasons.OPTIMIZATION_OFF,
            f"the optimization is not on, as far as was seen: {part.candidate} and {part.baseline} run {SAME}. Where "
            "it changes neither, a claim of speed or memory shows what it gains, and `switched_on` can go",
        )
    arms = context.contract.arms
    differs = arms[part.candidate].settings() != arms[part.baseline].settings()
    return f"; nothing tells them apart: {SAME}" if differs and equal and ours is not None and ours == theirs else ""


def _equal_bits(candidate: ArmEvidence, baseline: ArmEvidence) -> bool:
    ours, theirs = end_of(candidate), end_of(baseline)
    apart = difference(losses(candidate), losses(baseline), "every", EXACT)
    if apart.first_differing is not None or ours.trainable_digest != theirs.trainable_digest:
        return False
    return ours.state is None or theirs.state is None or not differing(ours.state, theirs.state)
