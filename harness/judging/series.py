"""Compare the series of two arms (losses or metrics, by step): check that the arms did equal work, then measure how
their series differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.contract.schema import AnyPart
from harness.errors import KindError
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.context import end_of, executed
from harness.judging.sheet import Settled, Sheet, number, settle, some
from harness.judging.verdict import Verdict
from harness.kinds import kind_of, resolve

Losses = NDArray[np.float64]
Compare = Literal["every", "final", "first"]
LOSS = "loss"


@dataclass(frozen=True)
class Bounds:
    """The largest allowed difference from the baseline's value in a step. None means that there is no bound. `absolute`
    and `relative` must both hold.

    relative: bound on the difference divided by the baseline's absolute value in that step. If that value is 0, the
    candidate's value must be 0, too. floor: the difference that rounding may cause in any step. rounding: the
    differences that rounding may cause, one for each step. The relative bound does not apply to a difference up to
    `floor` or `rounding`.
    """

    absolute: float | None
    relative: float | None = None
    floor: float = 0.0
    rounding: Losses | None = None

    def __str__(self) -> str:
        words = [] if self.absolute is None else [number(self.absolute)]
        words += [] if self.relative is None else [f"{number(self.relative)} times the baseline's value"]
        rounding = f", and rounding of the summed terms causes at most {number(self.floor)}" if self.floor else ""
        return " or ".join(words) + rounding


EXACT = Bounds(0.0)  # requires values that are equal in bits
ROUNDING = 1e-6  # rounding error of a sum of float32 terms / sum of the terms' sizes: a few times 2^-23


@dataclass(frozen=True)
class Difference:
    """How two series differ over their common steps. Steps are numbered from 0. A field for a step is None if there is
    no such step."""

    steps: int
    differing: int  # number of steps whose values differ in bits
    first_differing: int | None
    first_exceeding: int | None
    largest: float  # largest absolute difference; NaN if a compared loss is not finite
    largest_step: int | None
    # Largest relative difference: the difference in a step / the baseline's value in it; infinite if that value is 0.
    largest_relative: float = 0.0
    exceeded_bound: str | None = None  # name of the bound that step `first_exceeding` exceeds; None: none is exceeded
    # Number of steps in which the difference exceeds the relative bound, but not the rounding that the control shows.
    as_rounding: int = 0
    rounding: float = 0.0  # the largest difference that rounding may cause in the steps of `as_rounding`
    largest_unexcused: float = 0.0  # largest relative difference that does not count as rounding
    unexcused_step: int | None = None  # the step of `largest_unexcused`

    def excess(self, bounds: Bounds) -> tuple[bool, float, str]:
        """Return for a difference beyond the bounds: if it exceeds the absolute bound, its size, and its size in words.

        The size is in the unit of the exceeded bound. If both bounds are exceeded, this is the absolute bound.
        """
        if bounds.absolute is not None and not self.largest <= bounds.absolute:
            words = f"{number(self.largest)} (at step {self.largest_step}), which is more than {bounds}"
            return True, self.largest, words
        size, relative = self.largest_unexcused, replace(bounds, absolute=None)
        words = f"{number(size)} times the baseline's value (at step {self.unexcused_step})"
        return False, size, f"{words}, which is more than {relative}"


def losses(execution: ArmEvidence) -> Losses:
    """Return the losses of an execution as float64 (shape [steps])."""
    return np.asarray(execution.series.loss, dtype=np.float64)


def rounding_of(baseline: ArmEvidence) -> float:
    """Return how much rounding may change a loss of the baseline. A loss may be a small sum of large terms, so the sum
    of the terms' absolute values counts. Return 0 if the terms were not recorded."""
    terms, own = end_of(baseline).loss_terms, losses(baseline)
    return 0.0 if terms is None else ROUNDING * max([terms, *np.abs(own[np.isfinite(own)])])


def values(execution: ArmEvidence, metric: str) -> Losses:
    """Return the metric's values in all steps ([steps], float64). Raises NOT_RUN if the system reports no such
    metric."""
    if metric == LOSS:
        return losses(execution)
    reported = execution.series.metrics
    if metric not in reported and len(execution.series.loss):
        settle(
            reasons.CAPABILITY_MISSING,
            f"the system of arm {execution.start.arm} reports no metric `{metric}`; it reports "
            f"{', '.join(f'`{name}`' for name in (LOSS, *reported))}",
        )
    return np.asarray(reported.get(metric, []), dtype=np.float64)


def first_true(mask: NDArray[np.bool_]) -> int | None:
    """Return the index of the first true element; None if all elements are false."""
    return int(np.argmax(mask)) if mask.any() else None


def judged_steps(candidate: Losses, baseline: Losses, compare: Compare) -> tuple[Losses, Losses, int]:
    """Return both series over the judged steps, and the number of the first of these steps. The judged steps are all
    steps that both series have, or only the first or last of these steps, as `compare` states."""
    steps = min(len(candidate), len(baseline))
    steps = min(steps, 1) if compare == "first" else steps
    offset = max(steps - 1, 0) if compare == "final" else 0
    ours, theirs = (np.ascontiguousarray(series[offset:steps]) for series in (candidate, baseline))
    return ours, theirs, offset


def apart(ours: Losses, theirs: Losses) -> Losses:
    """Return the absolute difference in each step [steps]. The difference is NaN if a value is NaN, or if both values
    are the same infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.abs(ours - theirs)


def difference(candidate: Losses, baseline: Losses, compare: Compare, bounds: Bounds) -> Difference:
    """Return how two series differ over the steps that `compare` selects. Bits are compared: -0.0 differs from 0.0."""
    ours, theirs, offset = judged_steps(candidate, baseline, compare)
    if not len(ours):
        return Difference(0, 0, None, None, 0.0, None)
    bits = ours.view(np.int64) != theirs.view(np.int64)
    if not bits.any() and np.isfinite(ours).all():  # usually the series are equal, and returning here is faster
        return Difference(len(ours), 0, None, None, 0.0, offset)
    distances = apart(ours, theirs)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratios = np.where(distances == 0, 0.0, distances / np.abs(theirs))
    # NaN is never within a bound. If an array contains NaN, argmax returns the index of the NaN.
    beyond = {
        name: np.zeros_like(bits) if bound is None else ~(size <= bound)
        for name, size, bound in (
            ("max_abs_difference", distances, bounds.absolute),
            ("max_relative_difference", ratios, bounds.relative),
        )
    }
    rounding = np.full(len(ours), bounds.floor)
    if bounds.rounding is not None:
        known = bounds.rounding[offset : offset + len(ours)]
        rounding[: len(known)] = np.maximum(rounding[: len(known)], known)
    excused = beyond["max_relative_difference"] & (distances <= rounding)
    by_control = excused & (distances > bounds.floor)
    beyond["max_relative_difference"] &= ~excused
    exceeding = first_true(np.logical_or.reduce(list(beyond.values())))
    unexcused = np.where(excused, 0.0, ratios)
    first, worst, odd = first_true(bits), int(np.argmax(distances)), int(np.argmax(unexcused))
    return Difference(
        steps=len(ours),
        differing=int(bits.sum()),
        first_differing=None if first is None else first + offset,
        first_exceeding=None if exceeding is None else exceeding + offset,
        largest=float(distances[worst]),
        largest_step=worst + offset,
        largest_relative=float(np.max(ratios)),
        exceeded_bound=None if exceeding is None else next(name for name, mask in beyond.items() if mask[exceeding]),
        as_rounding=int(by_control.sum()),
        rounding=float(np.max(rounding, where=by_control, initial=0.0)),
        largest_unexcused=float(unexcused[odd]),
        unexcused_step=odd + offset,
    )


def require_finite(executions: Mapping[str, ArmEvidence], sheet: Sheet, metric: str = LOSS) -> None:
    """Raise FAIL if a loss or metric of an execution is NaN or infinite. The message names the first such step."""
    found: list[tuple[int, str, str, float]] = []
    for what in dict.fromkeys((LOSS, metric)):
        for name, execution in executions.items():
            series = values(execution, what)
            step = first_true(~np.isfinite(series))
            if step is not None:
                found.append((step, what, name, float(series[step])))
    if found:
        step, what, name, value = min(found, key=lambda entry: entry[0])
        sheet.figure("first_non_finite_step", step, "step")
        settle(reasons.NON_FINITE, f"the {what} of {name} is {value} at step {step}")


def require_same_work(executions: Mapping[str, ArmEvidence], sheet: Sheet) -> None:
    """Raise FAIL unless all executions made as many steps as the first execution, on the same batches."""
    reference_name, reference = next(iter(executions.items()))
    others = list(executions.items())[1:]
    for name, execution in others:
        ours, theirs = len(execution.series.loss), len(reference.series.loss)
        if ours != theirs:
            settle(reasons.UNEQUAL_LENGTHS, f"{name} has {ours} steps, but {reference_name} has {theirs}")
    for name, execution in others:
        _require_equal_work(name, execution, reference_name, reference, sheet)


def require_same_code(executions: Mapping[str, ArmEvidence]) -> None:
    """Raise INCONCLUSIVE if one of several arms runs compiled code, but its step's recording replays uncompiled code.

    Compiled code computes different bits, draws different random numbers, and may contain additional faults.
    """
    recorded = {
        name: execution.capture.as_written
        for name, execution in executions.items()
        if execution.capture is not None and execution.capture.as_written
    }
    if recorded and len({execution.start.arm for execution in executions.values()}) > 1:
        name, places = next(iter(recorded.items()))
        settle(
            reasons.RAN_AS_WRITTEN,
            f"the step of {name} runs compiled code ({some(places, 3)}), but the recording without a GPU holds the "
            "uncompiled operators; only CUDA graphs show how a captured step compares",
        )


def require_same_parameters(executions: Mapping[str, ArmEvidence]) -> None:
    """Raise FAIL if the trainable parameters of an execution have different names from those of the first execution."""
    reference_name, reference = next(iter(executions.items()))
    for name, execution in list(executions.items())[1:]:
        ours, theirs = execution.start.trainable_names, reference.start.trainable_names
        apart = names_apart(name, ours, reference_name, theirs)
        if apart and execution.start.trainable_digest != reference.start.trainable_digest:
            settle(reasons.UNEQUAL_START, f"{name} and {reference_name} train parameters with different names: {apart}")


def names_apart(name: str, ours: Sequence[str] | None, reference_name: str, theirs: Sequence[str] | None) -> str:
    """Return a text with the names that are in only one of two lists. Return "" if there are none, or if a list was not
    recorded."""
    if ours is None or theirs is None or ours == theirs:
        return ""
    only = ((name, sorted(set(ours) - set(theirs))), (reference_name, sorted(set(theirs) - set(ours))))
    return "; ".join(f"only {whose} has {some(names)}" for whose, names in only if names)


def _require_equal_work(
    name: str, execution: ArmEvidence, reference_name: str, reference: ArmEvidence, sheet: Sheet
) -> None:
    ours, theirs = execution.series, reference.series
    apart = names_apart(name, end_of(execution).input_names, reference_name, end_of(reference).input_names)
    names = f"; the inputs have different names: {apart}" if apart else ""
    tokens = first_true(np.asarray(ours.tokens) != np.asarray(theirs.tokens))
    batches = first_unequal(ours.batch_digest, theirs.batch_digest)
    if tokens is not None and (batches is None or tokens <= batches):
        # Batches with different numbers of tokens also have different digests. Report the numbers of tokens, which are
        # clearer.
        sheet.figure("first_unequal_step", tokens, "step")
        settle(
            reasons.UNEQUAL_TOKENS,
            f"at step {tokens}, {name} worked on {int(ours.tokens[tokens])} tokens, but {reference_name} on "
            f"{int(theirs.tokens[tokens])}{names}",
        )
    if batches is not None:
        sheet.figure("first_unequal_step", batches, "step")
        settle(
            reasons.UNEQUAL_BATCHES,
            f"at step {batches}, {name} and {reference_name} read different batches ({ours.batch_digest[batches]} and "
            f"{theirs.batch_digest[batches]}){names}",
        )


def first_unequal(ours: Sequence[str], theirs: Sequence[str]) -> int | None:
    """Return the first index at which two lists of equal length differ. Return None if all entries are equal."""
    if ours == theirs:  # to compare the whole lists first is faster
        return None
    return next(index for index, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])


def note_difference(sheet: Sheet, found: Difference, equality: str, bounds: Bounds, metric: str = LOSS) -> None:
    """Record the figures of a difference. For a claim that requires equal bits, also record whether the difference is
    within the bounds."""
    sheet.count("steps", found.steps)
    sheet.figure("max_abs_difference", found.largest, metric)
    sheet.figure("max_abs_difference_step", found.largest_step, "step")
    if bounds.absolute is not None:
        sheet.figure("tolerance", bounds.absolute, metric)
    if bounds.relative is not None:
        sheet.figure("max_relative_difference", found.largest_relative)
        sheet.figure("relative_tolerance", bounds.relative)
    sheet.figure("steps_differing", found.differing, "steps")
    sheet.figure("first_differing_step", found.first_differing, "step")
    if equality == "bitwise":
        sheet.figure("within_upstream_tolerance", found.steps > 0 and found.first_exceeding is None)
    elif equality == "within":
        sheet.figure("first_exceeding_step", found.first_exceeding, "step")
        if bounds.relative is not None:
            sheet.figure("exceeded_bound", found.exceeded_bound)


def called(metric: str) -> str:
    """Return the name of a metric's values in messages, such as `losses`."""
    return "losses" if metric == LOSS else f"values of `{metric}`"


def require_equal(
    found: Difference,
    equality: str,
    bounds: Bounds,
    names: str,
    sheet: Sheet,
    noise: str = "",
    metric: str = LOSS,
    *,
    beside: bool = False,
) -> None:
    """Raise FAIL if the series differ in bits (`bitwise`), or by more than a bound at any step (`within`)."""
    if equality == "bitwise" and not sheet.meets(
        "steps_differing", found.differing, "none", noun="steps differ", of=found.steps, beside=beside
    ):
        settle(
            reasons.DIFFERS,
            f"the {called(metric)} of {names} differ at {found.differing} of {found.steps} steps, first at step "
            f"{found.first_differing}, by at most {number(found.largest)} (at step {found.largest_step}){noise}",
        )
    sizes = (
        ("max_abs_difference", found.largest, bounds.absolute, metric),
        ("max_relative_difference", found.largest_unexcused, bounds.relative, ""),
    )
    if equality == "within" and not all(
        sheet.meets(name, size, "at most", bound, unit, beside=beside)
        for name, size, bound, unit in sizes
        if bound is not None
    ):
        settle(
            reasons.EXCEEDS_TOLERANCE,
            f"the {called(metric)} of {names} differ by up to {found.excess(bounds)[2]}, first at step "
            f"{found.first_exceeding}{noise}",
        )


# The code below returns the series that a judge compares. Charts draw exactly these series. The table row of a kind of
# claim names the function that returns them (`compares`), and both the judge and the charts call it.

ANY = Bounds(None)


@dataclass(frozen=True)
class Compared:
    """Two compared series (`ours`, `theirs`), each with the shape [steps]. repeats: the series of repetitions of the
    baseline."""

    candidate: str
    baseline: str
    ours: Losses
    theirs: Losses
    metric: str = LOSS
    compare: Compare = "every"
    repeats: tuple[Losses, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the comparison. The name consists of arms, metric and steps, so it is unique in a run."""
        which = [*([] if self.metric == LOSS else [self.metric]), *([] if self.compare == "every" else [self.compare])]
        return ", ".join([f"{self.candidate} against {self.baseline}", *which])

    def difference(self, bounds: Bounds = ANY) -> Difference:
        """Return how much the two series differ in the judged steps."""
        return difference(self.ours, self.theirs, self.compare, bounds)

    def repeated(self, bounds: Bounds = ANY) -> list[Difference]:
        """Return, for each repetition of the baseline, how much it differs from the baseline's first execution."""
        return [difference(each, self.theirs, self.compare, bounds) for each in self.repeats]

    @cached_property
    def distances(self) -> Losses:
        """Return the absolute difference between the two series in each judged step."""
        ours, theirs, _ = judged_steps(self.ours, self.theirs, self.compare)
        return apart(ours, theirs)


def of_two_arms(part: AnyPart, run: RunEvidence) -> list[Compared]:
    """Return the comparison of the candidate's losses with the baseline's losses. Raises ERROR if an arm is missing."""
    candidate, baseline = (part.arms()[path] for path in (part.candidate_path, part.baseline_path))
    return [Compared(candidate, baseline, losses(executed(run, candidate)), losses(executed(run, baseline)))]


def judged_series(part: AnyPart, run: RunEvidence, verdict: Verdict, prefix: str = "") -> Sequence[Compared]:
    """Return the series that the judge of a part compared in a run. If each rank is judged, return the series of the
    rank that decided the verdict.

    Return () if the kind of claim compares no series, if the part is judged from a run of another probe, or if evidence
    is missing. prefix: the prefix of the part's figures in the verdict.
    """
    kind = kind_of(part.kind)
    if kind.compares is None or run.probe != (part.chosen_probe() or next(iter(kind.probes))):
        return ()
    try:
        found: Sequence[Compared] = resolve(kind.compares)(part, of_deciding_rank(part, run, verdict, prefix))
    except (Settled, KindError):
        return ()
    return found


def of_deciding_rank(part: AnyPart, run: RunEvidence, verdict: Verdict, prefix: str = "") -> RunEvidence:
    """Return the evidence of the run or, if each rank is judged, of the rank that decided the verdict."""
    rank = verdict.figures.get(f"{prefix}rank") if part.judged_at == "each rank" else None
    if rank is not None and isinstance(rank.value, int) and 0 < rank.value <= len(run.ranks):
        return run.ranks[rank.value - 1]
    return run
