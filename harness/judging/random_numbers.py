"""Find arms that draw different random numbers. Both arms may be right, and no bound on rounding covers the difference
between their losses.

A captured or compiled library may use another kernel. With dropout, this kernel may drop other elements. The operators
that draw random numbers in a step, and their shapes, show which numbers the step drew. If the arms draw different
numbers, each arm has a drawing operator that the other arm does not have. If one arm only draws additional numbers,
this arm may be wrong, so the verdict of the comparison stays unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product, takewhile
from typing import NamedTuple

from harness.contract.schema import AnyPart
from harness.evidence.arm_records import Draws
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.context import Context, compared_arms
from harness.judging.sheet import instead, some
from harness.judging.verdict import Judgement

# Reason codes of verdicts in which numbers of two arms differ. Different random numbers may be the cause.
OF_NUMBERS = frozenset(
    {
        reasons.BEYOND_NOISE,
        reasons.DIFFERS,
        reasons.DIFFERS_FROM_ONE_BATCH,
        reasons.ENDS_APART,
        reasons.END_DIFFERS,
        reasons.EVALUATIONS_DIFFER,
        reasons.EXCEEDS_TOLERANCE,
        reasons.RANKS_END_APART,
    }
)
_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}  # others: 1


def with_other_numbers(judgement: Judgement, part: AnyPart, context: Context) -> Judgement:
    """Return the judgement. If its reason code says that compared numbers differ (`OF_NUMBERS`), and the two arms draw
    different random numbers, return INCONCLUSIVE instead."""
    drew = drew_otherwise(judgement.reason, part, context)
    if drew is None:
        return judgement
    message = f"{drew}; no bound on rounding covers the effect; {judgement.message}"
    return instead(judgement, reasons.OTHER_RANDOM_NUMBERS, message, other_random_numbers=drew)


def drew_otherwise(reason: str, part: AnyPart, context: Context) -> str | None:
    """Return a sentence about how the random numbers of the part's two arms differ. Return None if the part compares no
    two arms, if the recorded draws show no such difference (see `_differ`), if draws of the same step were not recorded
    in both arms, or if the reason code `reason` is not in `OF_NUMBERS`."""
    arms = compared_arms(part)
    if reason not in OF_NUMBERS or arms is None:
        return None
    recorded = product(*(_recorded(context.executions(arm)) for arm in arms))
    one_step = next(((made, plain) for made, plain in recorded if made.step == plain.step), None)
    return None if one_step is None else _differ(arms[0], one_step[0], arms[1], one_step[1])


def _recorded(executions: Sequence[ArmEvidence]) -> list[Draws]:
    return [each.end.draws for each in executions if each.end is not None and each.end.draws is not None]


class _Step(NamedTuple):
    """Drawing operators that a step may have executed. Their order is unknown if both a graph and the host drew."""

    operators: list[str]
    in_order: bool

    def draws_all_of(self, other: _Step) -> bool:
        if not (self.in_order and other.in_order):
            return Counter(other.operators) <= Counter(self.operators)
        ours = iter(self.operators)
        return all(each in ours for each in other.operators)

    def common(self, other: _Step) -> int:
        """Return how many operators at the beginning of the two steps are the same."""
        pairs = zip(self.operators, other.operators, strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _steps(draws: Draws) -> list[_Step]:
    """Return all lists of drawing operators that a step may have executed. A step may replay consecutive captures."""
    captured = [each for each in draws.captured if each]
    places = [(first, until) for first in range(len(captured)) for until in range(first + 1, len(captured) + 1)]
    pieces = [[name for each in captured[first:until] for name in each] for first, until in places]
    beside = [_Step([*draws.operators, *each], in_order=False) for each in pieces if draws.operators]
    alone = [_Step(each, in_order=True) for each in pieces]
    return [*alone, *beside] or [_Step(draws.operators, in_order=True)]


def _differ(ours: str, made: Draws, theirs: str, plain: Draws) -> str | None:
    """Return a sentence that names the first drawing operators that differ between the arms. Return None if one arm
    executes all drawing operators of the other arm, in the same order if the order is known.

    An additional or missing draw shifts all later random numbers, so it counts as a fault and is not excused here.
    """
    pairs = [(one, other) for one in _steps(made) for other in _steps(plain)]
    one, other = max(pairs, key=lambda pair: pair[0].common(pair[1]))
    if any(not each.operators for each in (one, other)):
        return _by_unseen_operators(ours, made, theirs, plain)
    if any(one.draws_all_of(other) or other.draws_all_of(one) for one, other in pairs):
        return None
    place = one.common(other)
    drew, instead = (each.operators[place] for each in (one, other))
    return (
        f"the operator number {place + 1} that draws random numbers in a step is {drew} in arm {ours} but {instead} "
        f"in arm {theirs}"
    )


def _by_unseen_operators(ours: str, made: Draws, theirs: str, plain: Draws) -> str | None:
    """Return a sentence if only one arm draws random numbers without a visible operator, as a custom kernel does.
    Otherwise return None."""
    (unseen, hides), (seen, shows) = sorted([(ours, made), (theirs, plain)], key=lambda each: _is_seen(each[1]))
    moved = [name for name in hides.generators if name.startswith("torch.")]
    if not moved or _is_seen(hides) or not _is_seen(shows):
        return None
    return (
        f"step {made.step} of arm {unseen} draws random numbers from {moved[0]}, but by no operator that the "
        f"harness sees, unlike arm {seen}"
    )


def _is_seen(draws: Draws) -> bool:
    return any([draws.operators, *draws.captured])


def with_other_precision(judgement: Judgement, part: AnyPart, context: Context) -> Judgement:
    """Return the judgement. If its reason code says that compared numbers differ (`OF_NUMBERS`), and only the candidate
    keeps its optimizer state in fewer bits than its parameters, return INCONCLUSIVE instead."""
    arms = compared_arms(part)
    if judgement.reason not in OF_NUMBERS or arms is None:
        return judgement
    candidate, baseline = arms
    ours, theirs = (_fewer_bits(context, arm) for arm in arms)
    if not ours or theirs:
        return judgement
    types = f"arm {candidate} keeps its optimizer's state as {some(ours)}, in fewer bits than its parameters"
    bound = f"and arm {baseline} does not; no bound on rounding covers the effect"
    message = f"{types}, {bound}; {judgement.message}; claim `not_worse` over seeds instead"
    return instead(judgement, reasons.OTHER_PRECISION, message, other_precision=types)


def _fewer_bits(context: Context, arm: str) -> list[str]:
    """Return the data types of the optimizer's state if one of them has fewer bits than the type of every parameter,
    else [].

    Optimizer state with the data type of the parameters excuses no difference between the arms. This data type may
    itself be the fault, if it has too few bits.
    """
    for each in context.executions(arm):
        state = None if each.end is None else each.end.state
        parameters = each.start.trainable_dtypes
        if state is not None and state.optimizer_bytes and parameters:
            types = sorted(state.optimizer_bytes)
            return types if min(map(_size, types)) < min(map(_size, parameters)) else []
    return []


def _size(name: str) -> int:
    return _BYTES.get(name, 1)
