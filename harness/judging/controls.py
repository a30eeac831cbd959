"""Measure by controls how far rounding alone takes two arms apart, and if the baseline repeats its own bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple, Protocol

import numpy as np

from harness.contract.schema import AnyPart
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import require_control
from harness.judging.context import Context, compared_arms
from harness.judging.equal_start import start_differences
from harness.judging.series import EXACT, Losses, difference, losses, values
from harness.judging.sheet import Sheet, instead, number, settle, some
from harness.judging.verdict import Judgement

# Measure how far rounding alone takes two arms apart. The control is the baseline with a start
# changed by a rounding.
#
# A candidate rounds in more places than the control was nudged in: another order of a sum, a faster
# convolution. So it may be apart by a multiple of the control's distance, and by more where most
# tensors are further apart to a like degree. How much further the median tensor is measures the
# candidate's own rounding, in bfloat16 as in float32.

AS_ROUNDING = 10.0  # times the control's distance: it is nudged once, and tensors follow a rounding unequally
MORE_ROUNDING = 10.0  # times the control's, at most: right steps of float32 needed 1, wrong ones were seen at 600
SAME_IN_CONTROL = ("buffers", "generators")  # other tensors may be copies of parameters, which are nudged with them


def moved_by_rounding(control: ArmEvidence, baseline: ArmEvidence, metric: str) -> Losses:
    """Return how far rounding may move a series [steps]: a multiple of the control's largest distance up to each step.

    The control is the baseline with a start changed by a rounding. Training may take it ever further away.
    """
    ours, theirs = values(control, metric), values(baseline, metric)
    steps = min(len(ours), len(theirs))
    with np.errstate(over="ignore", invalid="ignore"):
        distances = np.abs(ours[:steps] - theirs[:steps])
    return AS_ROUNDING * np.maximum.accumulate(np.where(np.isfinite(distances), distances, 0.0))


class Distance(Protocol):
    """One tensor: how far the arms are apart, how large that is which they share, and how far the control is."""

    @property
    def apart(self) -> float: ...
    @property
    def moved(self) -> float: ...
    @property
    def control(self) -> float: ...


class Rounding(NamedTuple):
    """How far a candidate's rounding takes its tensors, as most of them show.

    ratio: times the control's distance, at the median tensor; at least 1.
    share: of what both arms share, that the control is apart at its median tensor.
    """

    ratio: float
    share: float

    def capped(self, at_most: float) -> float:
        """Return the ratio that excuses a tensor beyond a bound: what takes all tensors much further is not rounding.

        It is at most `MORE_ROUNDING`, and takes a tensor that the control moves by the median share to `at_most` at
        most, as far as it may go anyway.
        """
        typical = at_most / (AS_ROUNDING * self.share) if self.share else math.inf
        return max(1.0, min(self.ratio, MORE_ROUNDING, typical))

    def reach(self, each: Distance) -> float:
        """Return how far a tensor may be apart that follows a rounding as most do, or as its control does."""
        return AS_ROUNDING * self.ratio * max(each.control, self.share * each.moved)


def measured_rounding(distances: Sequence[Distance]) -> Rounding:
    """Return how coarsely the candidate rounds, from the tensors that end elsewhere in the control."""
    seen = [each for each in distances if _is_measured(each)]
    if not seen:
        return Rounding(1.0, 0.0)
    ratio = median(each.apart / each.control for each in seen)
    return Rounding(max(1.0, ratio), median(each.control / each.moved for each in seen))


def _is_measured(each: Distance) -> bool:
    return 0 < each.moved < math.inf and 0 < each.control < math.inf and math.isfinite(each.apart)


def require_nudged_alone(control: ArmEvidence, theirs: str, baseline: ArmEvidence, sheet: Sheet) -> None:
    """Settle unless the control did the baseline's work, from its start but for the parameters, and came to an end."""
    name = f"control {control.start.arm}"
    require_control(name, control, theirs, baseline, sheet)
    apart = [str(each) for each in start_differences(control, baseline) if each.category in SAME_IN_CONTROL]
    if control.start.frozen_digest != baseline.start.frozen_digest:
        apart.append("frozen parameters")
    if apart:
        settle(
            reasons.UNEQUAL_START,
            f"{name} begins a rounding away from {theirs} in its parameters alone, and here in more: {some(apart)}",
        )


# Check that the baseline repeats its own bits, where a claim accuses by bits.
#
# Convolutions, scatters and many attention backwards on a GPU add in an order of their own at each
# run. A plain arm that differs from itself cannot show whether another arm differs, so such a claim
# is undecided and not violated.

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
    ran = {candidate: ours, baseline: theirs}
    return ", and ".join(f"arm {arm} alone ran {some(operators)}" for arm, operators in ran.items() if operators)


def _with_operators(judgement: Judgement, candidate: str, baseline: str, context: Context) -> Judgement:
    """Return the judgement with the operators that one arm alone ran: different kernels round differently."""
    ours, theirs = other_operators(context.executions(candidate), context.executions(baseline))
    if not ours and not theirs:
        return judgement
    ran = ran_otherwise(candidate, ours, baseline, theirs)
    message = f"{judgement.message}; their operators differ: {ran}"
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
