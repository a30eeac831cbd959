"""Define the claims about gradients: `gradient_match` (gradients agree with a baseline's gradients) and `accumulation`
(a step that processes its batch in micro-batches)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from harness.contract.base import (
    ArmName,
    ComparedSteps,
    CountsSteps,
    Demand,
    Equality,
    GradientDemand,
    Judged,
    Natural,
    NonNegative,
    Nothing,
    OptionalArm,
    Positive,
    Problem,
    Strict,
    refuse,
)
from harness.contract.guards import bites_by_equality


class Accumulation(Judged):
    """A step processes its batch as k different micro-batches, and makes one update. Gradients and losses agree with
    those of a step on the whole batch."""

    kind: Literal["accumulation"]
    """Judges gradients that are accumulated over micro-batches."""
    candidate: ArmName
    """The arm that processes batches in micro-batches. The first dimension of its inputs contains the micro-batches."""
    baseline: ArmName
    """The arm that processes the same batch at once."""
    micro_batches: Annotated[int, Field(ge=2), Demand("micro_batch_count")]
    """Number of micro-batches in a step. All of them must be different."""
    steps: ComparedSteps
    """Steps, counted from 0, at which gradients, norms before clipping and the loss are compared. Include a step after
    step 0, because only later steps show gradients that were not cleared. Choose early steps, because accumulated
    rounding hides faults after many steps."""
    max_relative_difference: Annotated[Positive, Demand("differs_from_one_batch")]
    """Largest allowed relative difference from the baseline, which processes one batch. For a gradient, the difference
    is relative to the largest element of the baseline's tensor. For a norm or loss, it is relative to the baseline's
    value. The bound must allow for rounding, because sums are added up in another order."""

    def contradictions(self) -> Iterator[Problem]:
        if len(set(self.steps)) < len(self.steps):
            yield Problem(("steps",), "`steps` must not name a step twice", str(self.steps), "remove the repeated step")

    def gradients(self) -> GradientDemand:
        return GradientDemand(self.candidate, self.baseline, self.steps)

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {self.candidate: {"micro_batches": self.micro_batches}}


class ClippedNorm(Strict):
    """After the clip, the norm of every group of gradients is at most `at_most` x (1 + `relative_rounding`)."""

    at_most: Annotated[Positive, Demand("clipped_norm_exceeded")]
    """The threshold of the clip."""
    relative_rounding: Annotated[NonNegative, Demand("clipped_norm_exceeded")]
    """The largest excess of a norm over the threshold that counts as rounding, relative to the threshold."""


class GradientMatch(Judged):
    """The gradients of every trainable tensor agree at the chosen steps, and no norm exceeds the threshold after the
    clip. A tensor that has no gradient in either arm at a step, but is trained in others, is not compared there."""

    kind: Literal["gradient_match"]
    """Compares gradients with those of a baseline, or clipped norms with a threshold, or makes both comparisons."""
    candidate: ArmName
    """The optimized arm."""
    baseline: OptionalArm = None
    """The plain arm. Without it, only the clipped norms are judged."""
    steps: ComparedSteps
    """Steps, counted from 0, at which gradients are compared."""
    equality: Annotated[Equality | None, Demand("differs")] = None
    """`bitwise`: every bit must be equal. `within`: `max_abs_difference` and `max_relative_difference` decide."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest allowed absolute difference of any element of a gradient from the baseline's element."""
    max_relative_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest allowed difference, relative to the largest element of the baseline's tensor. A difference smaller than
    1e-6 times the largest gradient of the step counts as rounding, and never violates this bound."""
    control: OptionalArm = None
    """Only with `equality: within`: an arm with the baseline's settings. The harness changes the initial parameters of
    this arm by about one rounding error, as in the `control` of `ends` in a `trajectory_match`. A difference counts as
    rounding if it is at most ten times the difference between this arm and the baseline."""
    clipped_norm: ClippedNorm | None = None
    """The threshold that the norm of no group of gradients may exceed after the clip."""
    clip_active_steps: Annotated[Natural | None, Demand("vacuous_clip_inactive"), Nothing(0), CountsSteps()] = None
    """Smallest number of steps in which the clip must have made the gradients of at least one group smaller."""

    must_train_alike: ClassVar[bool] = True

    def can_bite(self, path: str) -> bool:
        return bites_by_equality(path, self.equality) and super().can_bite(path)

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {} if self.control is None else {self.control: {"nudged": True}}

    @model_validator(mode="after")
    def _demands_something(self) -> GradientMatch:
        if self.baseline is None and self.clipped_norm is None:
            refuse("a gradient_match claim compares nothing; give it `baseline`, `clipped_norm` or both", "kind")
        if self.baseline is not None:
            bounds = (self.max_abs_difference, self.max_relative_difference)
            if self.equality is None or (self.equality == "within" and bounds == (None, None)):
                refuse("a claim with a baseline needs `equality` and, for `equality: within`, a bound", "baseline")
        return self

    def contradictions(self) -> Iterator[Problem]:
        if len(set(self.steps)) < len(self.steps):
            yield Problem(("steps",), "`steps` must not name a step twice", str(self.steps), "remove the repeated step")
        for field in ("equality", "max_abs_difference", "max_relative_difference"):
            if self.baseline is None and getattr(self, field) is not None:
                remedy = f"name a `baseline`, or leave `{field}` out"
                yield Problem(
                    (field,), f"`{field}` compares with a baseline, so the claim must name a `baseline`", "none", remedy
                )
        if self.control is not None and self.equality != "within":
            rule = "`control` is only for arms that are compared within a bound"
            yield Problem(("control",), rule, f"`{self.equality}`", "leave `control` out, or write `equality: within`")

    def replicas(self) -> dict[str, int]:
        # Execute the baseline twice. If its two executions differ in bits, a claim of equal bits cannot be decided.
        return {self.baseline: 2} if self.baseline is not None and self.equality == "bitwise" else {}

    def compared(self) -> list[list[str]]:
        # The baseline's repetition is not in the list, because its gradients are not needed.
        return [sorted(set(self.arms().values()))]

    def candidate_capabilities(self) -> frozenset[str]:
        reads_norms = self.clipped_norm is not None or self.clip_active_steps is not None
        return frozenset({"gradient_norms"} if reads_norms else ())

    def baseline_capabilities(self) -> frozenset[str]:
        return frozenset({"gradient_norms"} if self.clip_active_steps else ())

    def gradients(self) -> GradientDemand:
        return GradientDemand(self.candidate, self.baseline, self.steps, control=self.control)
