"""Measure with control arms how far rounding alone moves two arms apart, and whether a baseline repeats its bits."""

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

# The code below measures how far rounding alone moves two arms apart. The control arm is a baseline whose initial
# parameters were changed by one rounding error ("nudged"). A candidate may round in many places, for example because it
# adds in another order, but the control was changed only once. Therefore a candidate's distance from the baseline may
# be a multiple of the control's distance. An even larger multiple is allowed if most tensors have it. The multiple of
# the median tensor measures how much the candidate rounds.

# a candidate's distance may be this multiple of the control's distance, because a single rounding error changes
# different tensors by different amounts
AS_ROUNDING = 10.0
# largest factor by which `AS_ROUNDING` may be multiplied; correct float32 steps needed 1, and wrong steps showed 600
MORE_ROUNDING = 10.0
# Categories of state that must be equal at the start of control and baseline. Tensors of other categories may differ,
# because they may be copies of the changed parameters.
SAME_IN_CONTROL = ("buffers", "generators")


def moved_by_rounding(control: ArmEvidence, baseline: ArmEvidence, metric: str) -> Losses:
    """Return, for each step, how much rounding may change a series: a multiple of the control's largest distance up to
    this step.

    metric: the name of the series, such as the loss. The control's distance is its distance from the baseline.
    """
    ours, theirs = values(control, metric), values(baseline, metric)
    steps = min(len(ours), len(theirs))
    with np.errstate(over="ignore", invalid="ignore"):
        distances = np.abs(ours[:steps] - theirs[:steps])
    return AS_ROUNDING * np.maximum.accumulate(np.where(np.isfinite(distances), distances, 0.0))


class Distance(Protocol):
    """Distances of one tensor. For a tensor of the state they are L2 norms. apart: between the ends of candidate and
    baseline. control: between the ends of control and baseline. moved: between the baseline's start and end.

    For a gradient they are largest absolute values: of the difference between candidate and baseline (apart), of the
    difference between control and baseline (control), and of the baseline's gradient (moved).
    """

    @property
    def apart(self) -> float: ...
    @property
    def moved(self) -> float: ...
    @property
    def control(self) -> float: ...


class Rounding(NamedTuple):
    """How much rounding changes most of the candidate's tensors. `Distance` explains `apart`, `control` and `moved`.

    ratio: the median of all tensors' `apart` / `control`, at least 1. share: the median of all `control` / `moved`.
    """

    ratio: float
    share: float

    def capped(self, at_most: float) -> float:
        """Return the ratio that may excuse a tensor whose distance exceeds the bound `at_most`. A distance up to
        `AS_ROUNDING` times this ratio times the control's distance counts as rounding.

        The ratio is at most `MORE_ROUNDING`, because larger distances in all tensors do not come from rounding. If the
        ratio is above 1, a tensor with the median `control` / `moved` must nevertheless stay within `at_most`.
        """
        typical = at_most / (AS_ROUNDING * self.share) if self.share else math.inf
        return max(1.0, min(self.ratio, MORE_ROUNDING, typical))

    def reach(self, each: Distance) -> float:
        """Return the largest distance of this tensor that rounding explains: the larger of two values, one computed
        from the control's distance in this tensor, the other from the control's distance in the median tensor."""
        return AS_ROUNDING * self.ratio * max(each.control, self.share * each.moved)


def measured_rounding(distances: Sequence[Distance]) -> Rounding:
    """Return how much rounding changes the candidate, measured on the tensors in which control and baseline differ."""
    seen = [each for each in distances if _is_measured(each)]
    if not seen:
        return Rounding(1.0, 0.0)
    ratio = median(each.apart / each.control for each in seen)
    return Rounding(max(1.0, ratio), median(each.control / each.moved for each in seen))


def _is_measured(each: Distance) -> bool:
    return 0 < each.moved < math.inf and 0 < each.control < math.inf and math.isfinite(each.apart)


def require_nudged_alone(control: ArmEvidence, theirs: str, baseline: ArmEvidence, sheet: Sheet) -> None:
    """End the judgement (by raising `Settled`) unless two conditions hold: the control did the same work as the
    baseline, and at the start only its parameters differed from the baseline's."""
    name = f"control {control.start.arm}"
    require_control(name, control, theirs, baseline, sheet)
    apart = [str(each) for each in start_differences(control, baseline) if each.category in SAME_IN_CONTROL]
    if control.start.frozen_digest != baseline.start.frozen_digest:
        apart.append("frozen parameters")
    if apart:
        settle(
            reasons.UNEQUAL_START,
            f"{name} must differ from {theirs} at the start only by a rounding of its parameters, but it also differs "
            f"in {some(apart)}",
        )


# The code below checks whether the baseline repeats its own bits, if a claim fails because bits differ.
#
# On a GPU, convolutions, scatters and the backward pass of many attention kernels add in another order each time. If a
# baseline differs from its own repetition, different bits in the candidate prove nothing. The claim is then undecided.

OF_BITS = frozenset({reasons.DIFFERS, reasons.END_DIFFERS})
REMEDY = (
    "claim equal bits only of arms with `deterministic: true`; or use `equality: noise`, which compares the "
    "candidate with the noise between the baseline's own runs"
)


def accused_by_bits(judgement: Judgement, part: AnyPart, context: Context) -> Judgement:
    """Return the judgement, changed only if the claim fails because bits differ. If the baseline does not repeat its
    own bits, return INCONCLUSIVE instead. If it repeats them, add to the message the operators that only one of the
    arms ran."""
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
    """Return the operators that only the first arm ran, and those that only the baseline ran. Both lists are empty if
    the operators of an arm are unknown.

    An operator that an arm runs only in some of its observed steps is left out. Such an operator depends on a Python
    condition, whose result replays repeat. It shows a difference between steps, and not between the kernels of the
    arms.
    """
    ours, theirs = _watched_operators(arm), _watched_operators(baseline)
    if not all(ours) or not all(theirs):
        return [], []
    return _only_first(ours, theirs), _only_first(theirs, ours)


def _only_first(one: Sequence[set[str]], other: Sequence[set[str]]) -> list[str]:
    """Return the operators that are in every set of `one`, and in no set of `other`."""
    return sorted(one[0].intersection(*one) - set[str]().union(*other))


def _watched_operators(executions: Sequence[ArmEvidence]) -> list[set[str]]:
    """Return two sets of operators of one arm: those of its captures or of its observed step, and those of its first
    step after the warm steps, which a captured arm would capture. The second set is missing if it was not recorded."""
    ends = [each.end for each in executions if each.end is not None]
    firsts = [each.first_operators for each in ends if each.first_operators is not None]
    watched = {name for each in ends for name in each.operators or ()}
    return [watched, *([{name for names in firsts for name in names}] if firsts else [])]


def ran_otherwise(candidate: str, ours: list[str], baseline: str, theirs: list[str]) -> str:
    """Return a sentence that names the operators that only one of the two arms ran."""
    ran = {candidate: ours, baseline: theirs}
    return ", and ".join(f"only arm {arm} ran {some(operators)}" for arm, operators in ran.items() if operators)


def _with_operators(judgement: Judgement, candidate: str, baseline: str, context: Context) -> Judgement:
    """Return the judgement. Its message also names operators that only one arm ran: other kernels round differently."""
    ours, theirs = other_operators(context.executions(candidate), context.executions(baseline))
    if not ours and not theirs:
        return judgement
    ran = ran_otherwise(candidate, ours, baseline, theirs)
    message = f"{judgement.message}; the operators of the arms differ: {ran}"
    return instead(judgement, judgement.reason, message, other_operators=some(ours + theirs))


def _unlike(executions: Sequence[ArmEvidence]) -> str | None:
    """Find two executions with equal starts and batches, but unequal losses or unequal parameters at the end. Return in
    words how the first such pair differs, or None if there is no such pair."""
    for one, other in combinations(executions, 2):
        if _work(one) != _work(other):
            continue
        apart = difference(losses(other), losses(one), "every", EXACT)
        if apart.first_differing is not None:
            return f"by {number(apart.largest)} in the loss, first at step {apart.first_differing}"
        if one.end is not None and other.end is not None and one.end.trainable_digest != other.end.trainable_digest:
            return "in the parameters at the end"
    return None


def _work(execution: ArmEvidence) -> tuple[str, str, tuple[str, ...]]:
    start = execution.start
    return start.trainable_digest, start.frozen_digest, tuple(execution.series.batch_digest)
