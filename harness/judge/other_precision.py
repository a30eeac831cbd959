"""Optimizers whose state has fewer bits than parameters take other steps: no difference of numbers accuses them."""

from __future__ import annotations

from harness.contract.claims import AnyPart
from harness.judge import reasons
from harness.judge.context import Context
from harness.judge.random_numbers import OF_NUMBERS
from harness.judge.sheet import some
from harness.judge.verdict import Figure, Judgement

_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}  # others: 1


def with_other_precision(judgement: Judgement, part: AnyPart, context: Context) -> Judgement:
    """Return the judgement; INCONCLUSIVE where it accuses by numbers an arm whose optimizer keeps fewer bits."""
    baseline, candidate = (part.arms().get(path) for path in (part.baseline_path, part.candidate_path))
    if judgement.reason not in OF_NUMBERS or candidate is None or baseline is None or candidate == baseline:
        return judgement
    ours, theirs = (_fewer_bits(context, arm) for arm in (candidate, baseline))
    if not ours or theirs:
        return judgement
    types = f"arm {candidate} keeps its optimizer's state as {some(ours)}, of fewer bits than its parameters have"
    bound = f"and arm {baseline} does not, which no bound on rounding covers"
    return judgement.model_copy(
        update={
            "status": reasons.REASONS[reasons.OTHER_PRECISION].status,
            "reason": reasons.OTHER_PRECISION,
            "message": f"{types}, {bound}; {judgement.message}; `not_worse` over seeds decides it",
            "figures": {**judgement.figures, "other_precision": Figure(value=types)},
        }
    )


def _fewer_bits(context: Context, arm: str) -> list[str]:
    """Return the types of an optimizer's state if one is narrower than all parameters; none where nothing says so.

    State in the parameters' own type is what every optimizer makes: that one is too narrow may be the fault.
    """
    for each in (each for run in context.runs for each in run.arms.get(arm, [])):
        state = None if each.end is None else each.end.state
        parameters = each.start.trainable_dtypes
        if state is not None and state.optimizer_bytes and parameters:
            types = sorted(state.optimizer_bytes)
            return types if min(map(_size, types)) < min(map(_size, parameters)) else []
    return []


def _size(name: str) -> int:
    return _BYTES.get(name, 1)
