"""An accusation that rests on bits needs a baseline that repeats its own bits.

Convolutions, scatters and many attention backwards on a GPU add in an order of their own at each run. A plain arm that
differs from itself cannot say whether another arm differs, so such a claim is undecided and not violated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from harness.contract.claims import AnyPart
from harness.evidence.run_evidence import ArmEvidence
from harness.judge import reasons
from harness.judge.context import Context
from harness.judge.series import EXACT, difference, losses
from harness.judge.sheet import number
from harness.judge.verdict import Judgement

OF_BITS = frozenset({reasons.DIFFERS, reasons.END_DIFFERS})
REMEDY = (
    "claim bits of arms with `deterministic: true`, or `equality: noise`, which compares the candidate with the "
    "baseline's own noise"
)


def undecided_without_repetition(judgement: Judgement, part: AnyPart, context: Context) -> Judgement:
    """Return the judgement, or INCONCLUSIVE where it accuses by bits and the baseline does not repeat its own."""
    baseline = part.arms().get(part.baseline_path)
    by_bits = judgement.reason in OF_BITS and getattr(part, "equality", None) != "within"
    candidate = part.arms().get(part.candidate_path)
    if not by_bits or baseline is None or baseline == candidate:
        return judgement
    executions = [each for run in context.runs for each in run.arms.get(baseline, [])]
    unrepeated = _unlike(executions)
    if unrepeated is None:
        return judgement
    return judgement.model_copy(
        update={
            "status": reasons.REASONS[reasons.BASELINE_NOT_REPEATABLE].status,
            "reason": reasons.BASELINE_NOT_REPEATABLE,
            "message": f"{judgement.message}; and baseline {baseline} differs from its own repetition, {unrepeated}: "
            f"{REMEDY}",
        }
    )


def _unlike(executions: Sequence[ArmEvidence]) -> str | None:
    """Return how two executions differ that began alike and did the same work; None where all such are equal."""
    for one, other in combinations(executions, 2):
        if _work(one) != _work(other):
            continue
        apart = difference(losses(other), losses(one), "every", EXACT)
        if apart.first_differing is not None:
            return f"by {number(apart.largest)} in the loss, first at step {apart.first_differing}"
        if one.end is not None and other.end is not None and one.end.trainable_digest != other.end.trainable_digest:
            return "in the parameters that it ends with"
    return None


def _work(execution: ArmEvidence) -> tuple[str, str, tuple[str, ...]]:
    start = execution.start
    return start.trainable_digest, start.frozen_digest, tuple(execution.series.batch_digest)
