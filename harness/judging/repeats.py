"""Check that the baseline repeats its own bits, where a claim accuses by bits.

Convolutions, scatters and many attention backwards on a GPU add in an order of their own at each run. A plain arm that
differs from itself cannot show whether another arm differs, so such a claim is undecided and not violated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from harness.contract.claims import AnyPart
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.context import Context, compared_arms
from harness.judging.series import EXACT, difference, losses
from harness.judging.sheet import instead, number, some
from harness.judging.verdict import Judgement

OF_BITS = frozenset({reasons.DIFFERS, reasons.END_DIFFERS})
REMEDY = (
    "claim bits of arms with `deterministic: true`, or `equality: noise`, which compares the candidate with the "
    "baseline's own noise"
)


def accused_by_bits(judgement: Judgement, part: AnyPart, context: Context) -> Judgement:
    """Return the judgement. One that accuses by bits names the operators that one arm alone ran, or is INCONCLUSIVE
    where the baseline does not repeat its own bits.
    """
    arms = compared_arms(part)
    if judgement.reason not in OF_BITS or getattr(part, "equality", None) == "within" or arms is None:
        return judgement
    candidate, baseline = arms
    unrepeated = _unlike(context.executions(baseline))
    if unrepeated is None:
        return _with_operators(judgement, candidate, baseline, context)
    how = f"and baseline {baseline} differs from its own repetition, {unrepeated}: {REMEDY}"
    return instead(judgement, reasons.BASELINE_NOT_REPEATABLE, f"{judgement.message}; {how}")


def other_operators(arm: Sequence[ArmEvidence], baseline: Sequence[ArmEvidence]) -> tuple[list[str], list[str]]:
    """Return the operators that the arm alone ran, and those that the baseline alone ran; empty lists where the
    operators of either one are unknown.
    """
    ours, theirs = (
        {name for each in executions if each.end is not None for name in each.end.operators or ()}
        for executions in (arm, baseline)
    )
    return (sorted(ours - theirs), sorted(theirs - ours)) if ours and theirs else ([], [])


def ran_otherwise(candidate: str, ours: list[str], baseline: str, theirs: list[str]) -> str:
    """Return the sentence about the operators that only one of the two arms ran."""
    return f"arm {candidate} ran {some(ours) or 'no operator more'}, and arm {baseline} {some(theirs) or 'none more'}"


def _with_operators(judgement: Judgement, candidate: str, baseline: str, context: Context) -> Judgement:
    """Return the judgement with the operators that one arm alone ran: different kernels round differently."""
    ours, theirs = other_operators(context.executions(candidate), context.executions(baseline))
    if not ours and not theirs:
        return judgement
    ran = ran_otherwise(candidate, ours, baseline, theirs)
    message = f"{judgement.message}; they ran other operators: {ran}"
    return instead(judgement, judgement.reason, message, other_operators=some(ours + theirs))


def _unlike(executions: Sequence[ArmEvidence]) -> str | None:
    """Return how two executions of equal start and batches differ; None where all such executions are equal."""
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
