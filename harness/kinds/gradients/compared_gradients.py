"""Compare the gradients of two arms as they are after a step. If the step changed them, for example by a clip, compare
them also as they were after the backward pass."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from harness.evidence.arm_records import Gradients, TensorReduction
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.controls import AS_ROUNDING, measured_rounding
from harness.judging.series import ROUNDING
from harness.judging.sheet import number, settle, some
from harness.kinds.gradients.model import Accumulation, GradientMatch


@dataclass(frozen=True)
class Compared:
    """The difference of one tensor's gradient from the baseline's gradient at one step.

    differs: True if any bit differs. absolute: the largest absolute difference of any element.
    size: the largest absolute value in the baseline's gradient. relative: `absolute` / `size`.
    made: True if the gradient was read before the clip. `absolute` and `size` are then scaled to sizes after the clip:
    multiplied by (largest gradient after the clip / largest gradient before it) of the baseline, but at most by 1.
    rounded: True if rounding alone can explain the difference.
    room: the largest difference that rounding may cause, measured with a control.
    """

    step: int
    tensor: str
    differs: bool
    absolute: float
    relative: float
    rounded: bool
    size: float
    made: bool = False
    room: float = 0.0


def records_of(part: GradientMatch | Accumulation, candidate: ArmEvidence) -> list[Gradients]:
    """Return the candidate's gradients at the compared steps. End the judgement with ERROR if gradients are missing, or
    if they were compared with another arm than the claim's baseline."""
    by_step = {record.step: record for record in candidate.gradients}
    missing = [str(step) for step in part.steps if step not in by_step]
    if missing:
        settle(reasons.EVIDENCE_MISSING, f"gradients of {part.candidate} are missing at step {some(missing)}")
    records = [by_step[step] for step in sorted(set(part.steps))]
    if part.baseline is not None:
        for record in records:
            if record.baseline != part.baseline:
                settle(
                    reasons.EVIDENCE_MISSING,
                    f"gradients of step {record.step} were compared with {record.baseline}, not with {part.baseline}",
                )
    return records


def compared_tensors(
    part: GradientMatch | Accumulation, records: list[Gradients], baseline: ArmEvidence, *, of_control: bool = False
) -> Iterator[Compared]:
    """Yield, for each step and tensor, the difference of the gradient from the baseline's gradient. End the judgement
    with ERROR if a tensor was not compared, and with FAIL if only the candidate has a gradient for a tensor.

    of_control: True if the arm is a control, which may have a gradient for a tensor that has none in the baseline.

    A gradient of zeros is left out if the baseline has no gradient for the tensor. An arm that keeps all gradients in
    one buffer has zeros for such a tensor. If an optimizer nevertheless updates the tensor, the comparison of the
    parameters finds the update.
    """
    theirs = {record.step: record for record in baseline.gradients}
    for record in records:
        other = theirs.get(record.step)
        without = set() if other is None else {*other.without}
        written = {*(record.written or ()), *((other and other.written) or ())} if record.made else set[str]()
        if record.made is not None:
            unlike = {tensor.name for tensor in record.made} ^ {tensor.name for tensor in record.tensors}
            if unlike:
                settle(
                    reasons.EVIDENCE_INCONSISTENT,
                    f"at step {record.step}, these gradients were not recorded both before and after the clip: "
                    f"{some(sorted(unlike))}",
                )
            made = record.made
            yield from _compared(
                part, record.step, made, without, of_control=of_control, of_left=_largest(record.tensors)
            )
        left = [each for each in record.tensors if each.name not in written]
        yield from _compared(part, record.step, left, without, of_control=of_control)


class _Distance(NamedTuple):
    apart: float
    moved: float
    control: float


def beside_control(
    part: GradientMatch, compared: list[Compared], control: ArmEvidence, baseline: ArmEvidence
) -> list[Compared]:
    """Return the entries of `compared` with a new `room`, the largest difference that rounding may cause. `room` is
    computed from the differences between the gradients of the control and of the baseline.

    End the judgement with ERROR if a gradient of the control was not recorded. A tensor that a step of the control did
    not use has no gradient, and its name is recorded instead.
    """
    steps = list(dict.fromkeys(entry.step for entry in compared))
    nudged = part.model_copy(update={"candidate": control.start.arm, "steps": steps})
    records = records_of(nudged, control)
    recorded = {(record.step, name) for record in records for name in record.without}
    theirs: dict[tuple[int, str], dict[bool, float]] = {}
    for entry in compared_tensors(nudged, records, baseline, of_control=True):
        recorded.add((entry.step, entry.tensor))
        if math.isfinite(entry.absolute):  # a difference of the control that is NaN or infinite explains nothing
            theirs.setdefault((entry.step, entry.tensor), {})[entry.made] = entry.absolute
    for entry in compared:
        if (entry.step, entry.tensor) not in recorded:
            settle(
                reasons.EVIDENCE_MISSING,
                f"the gradient of {entry.tensor} at step {entry.step} was not recorded in control {control.start.arm}",
            )
    found = []
    for step in steps:
        here = [entry for entry in compared if entry.step == step]
        of_step = [theirs.get((step, entry.tensor), {}) for entry in here]
        # If the control's gradient was not recorded before the clip, use the control's difference after the clip.
        nearest = [each.get(entry.made, each.get(False, 0.0)) for entry, each in zip(here, of_step, strict=True)]
        distances = [_Distance(entry.absolute, entry.size, far) for entry, far in zip(here, nearest, strict=True)]
        ratio = measured_rounding(distances).capped(part.max_relative_difference or 1.0)
        found += [replace(entry, room=AS_ROUNDING * ratio * far) for entry, far in zip(here, nearest, strict=True)]
    return found


def _compared(
    part: GradientMatch | Accumulation,
    step: int,
    tensors: Sequence[TensorReduction],
    without: Collection[str],
    of_left: float | None = None,
    *,
    of_control: bool = False,
) -> Iterator[Compared]:
    """Yield the difference between each gradient in `tensors` and the baseline's gradient at step `step`.

    without: names of the tensors that have no gradient in the baseline. of_left: if `tensors` were read before the
    clip, the largest absolute value in the baseline's gradients after the clip; otherwise None.
    """
    largest = _largest(tensors)
    let_through = 1.0 if of_left is None or not 0 < of_left < largest else of_left / largest
    for tensor in tensors:
        absolute, scale = tensor.max_abs_difference, tensor.baseline_max_abs
        if absolute is None and tensor.name in without:
            if tensor.max_abs == 0 or of_control:
                continue
            settle(
                reasons.TENSORS_MISSING,
                f"at step {step}, {tensor.name} has a gradient of up to {number(tensor.max_abs)} in {part.candidate}, "
                f"but none in {part.baseline}",
            )
        if absolute is None or tensor.baseline_digest is None or scale is None:
            settle(
                reasons.EVIDENCE_MISSING,
                f"the gradient of {tensor.name} at step {step} was not compared with {part.baseline}",
            )
        differs = tensor.digest != tensor.baseline_digest
        if not differs and absolute > 0:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"at step {step}, {tensor.name} has equal digests in both arms, but a recorded difference of "
                f"{number(absolute)}",
            )
        if math.isnan(absolute):  # the values of both arms are infinite, which can happen before a clip
            absolute = math.inf if differs else 0.0
        yield Compared(
            step,
            tensor.name,
            differs,
            absolute * let_through,
            _relative(absolute, scale),
            rounded=absolute <= ROUNDING * largest,
            size=scale * let_through,
            made=of_left is not None,
        )


def _largest(tensors: Sequence[TensorReduction]) -> float:
    """Return the largest finite absolute value among the baseline's gradients in a step."""
    sizes = (tensor.baseline_max_abs or 0.0 for tensor in tensors)
    return max((size for size in sizes if math.isfinite(size)), default=0.0)


def norms_of(records: list[Gradients], baseline: ArmEvidence) -> dict[int, tuple[float, float]]:
    """Return for each step two norms of all gradients before the clip: the candidate's norm and the baseline's norm.
    Steps at which one of these norms was not recorded are left out."""
    theirs = {record.step: record.made_norm for record in baseline.gradients}
    pairs = ((record.step, record.made_norm, theirs.get(record.step)) for record in records)
    return {step: (ours, other) for step, ours, other in pairs if ours is not None and other is not None}


def _relative(absolute: float, scale: float) -> float:
    """Return `absolute` / `scale`. If `scale` is 0, return 0 if `absolute` is 0, and infinity otherwise."""
    if scale == 0:
        return 0.0 if absolute == 0 else math.inf
    return absolute / scale


# Smallest share of a step's tensors whose differences must be within the relative bound or too large to be rounding. In
# a convolutional network, a quarter of the tensors can be biases before a normalization layer, whose gradients consist
# of rounding.
FEWEST_COMPARED = 0.5


class OfTensor(Protocol):
    """The difference of one tensor's gradient from the baseline's gradient at one step."""

    @property
    def step(self) -> int: ...
    @property
    def tensor(self) -> str: ...
    @property
    def rounded(self) -> bool: ...
    @property
    def relative(self) -> float: ...


def require_most_compared(compared: Sequence[OfTensor], bound: float | None) -> None:
    """End the judgement with INCONCLUSIVE if most differences of a step exceed the relative bound but may be rounding.

    A difference counts as rounding if it is small compared with the step's largest gradient. One very large gradient,
    such as the gradient of a tensor that diverges, would therefore make the difference of every other tensor count as
    rounding.
    """
    if bound is None:
        return
    for step in dict.fromkeys(each.step for each in compared):
        here = [each for each in compared if each.step == step]
        excused = [each.tensor for each in here if each.rounded and each.relative > bound]
        if len(excused) > (1 - FEWEST_COMPARED) * len(here):
            settle(
                reasons.GRADIENTS_UNDECIDED,
                f"at step {step}, {len(excused)} of {len(here)} gradients exceed the relative bound, but are so small "
                "next to the largest gradient of the step that the differences could be rounding alone: "
                f"{some(excused)}",
            )
