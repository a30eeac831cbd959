"""Define the claims about gradients: agreement with a baseline's, and steps that take their batch in micro-batches."""

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
    """A step reads its batch as k different micro-batches and makes one update, equal to the whole batch's update."""

    kind: Literal["accumulation"]
    """Judges gradients that are accumulated over micro-batches."""
    candidate: ArmName
    """The arm that takes each batch in micro-batches, which are the first dimension of its inputs."""
    baseline: ArmName
    """The arm that takes the same batch at once."""
    micro_batches: Annotated[int, Field(ge=2), Demand("micro_batch_count")]
    """Number of micro-batches in a step, all different."""
    steps: ComparedSteps
    """Steps, counted from 0, at which gradients, norms before clipping and loss are compared. Gradients that were not
    cleared are visible only from step 1 on. After many steps, accumulated rounding hides faults."""
    max_relative_difference: Annotated[Positive, Demand("differs_from_one_batch")]
    """Largest relative difference from the arm with one batch. For a gradient, it is relative to the tensor's largest
    element, for norms and losses to their value. It allows for the rounding of sums that are added in another order."""

    def contradictions(self) -> Iterator[Problem]:
        if len(set(self.steps)) < len(self.steps):
            yield Problem(("steps",), "`steps` are distinct", str(self.steps), "remove the repeated one")

    def gradients(self) -> GradientDemand:
        return GradientDemand(self.candidate, self.baseline, self.steps)

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {self.candidate: {"micro_batches": self.micro_batches}}


class ClippedNorm(Strict):
    """After clipping, every group's norm is at most `at_most` x (1 + relative_rounding)."""

    at_most: Annotated[Positive, Demand("clipped_norm_exceeded")]
    """The clip's threshold."""
    relative_rounding: Annotated[NonNegative, Demand("clipped_norm_exceeded")]
    """Allowance for rounding, relative to the threshold."""


class GradientMatch(Judged):
    """Gradients of every trainable tensor agree at the chosen steps, and clipped norms keep the threshold. A tensor
    that has no gradient at a step in either arm but trains in other steps is not compared at that step."""

    kind: Literal["gradient_match"]
    """Judges gradients against a baseline, clipped norms against a threshold, or both."""
    candidate: ArmName
    """The optimized arm."""
    baseline: OptionalArm = None
    """The plain arm. Without it, only the clipped norms are judged."""
    steps: ComparedSteps
    """Steps, counted from 0, at which gradients are reduced and compared."""
    equality: Annotated[Equality | None, Demand("differs")] = None
    """`bitwise`: digests must be equal. `within`: the bounds below decide."""
    max_abs_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest absolute difference of any element."""
    max_relative_difference: Annotated[Positive | None, Demand("exceeds_tolerance")] = None
    """Largest difference relative to the baseline tensor's largest element. A difference below 1e-6 of the step's
    largest gradient counts as rounding and never exceeds this bound."""
    control: OptionalArm = None
    """Under `within`: an arm with the baseline's settings, like the `control` of `ends` in a `trajectory_match`. The
    harness changes its initial parameters by a rounding. A difference of at most ten times this arm's distance to the
    baseline counts as rounding."""
    clipped_norm: ClippedNorm | None = None
    """The threshold that no group's norm exceeds after clipping."""
    clip_active_steps: Annotated[Natural | None, Demand("vacuous_clip_inactive"), Nothing(0), CountsSteps()] = None
    """Steps in which the clip must have scaled at least one group."""

    must_train_alike: ClassVar[bool] = True

    def can_bite(self, path: str) -> bool:
        return bites_by_equality(path, self.equality) and super().can_bite(path)

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {} if self.control is None else {self.control: {"nudged": True}}

    @model_validator(mode="after")
    def _demands_something(self) -> GradientMatch:
        if self.baseline is None and self.clipped_norm is None:
            refuse("gradient_match needs `baseline`, `clipped_norm` or both", "kind")
        if self.baseline is not None:
            bounds = (self.max_abs_difference, self.max_relative_difference)
            if self.equality is None or (self.equality == "within" and bounds == (None, None)):
                refuse("a claim with a baseline must have `equality` and, for `within`, a bound", "baseline")
        return self

    def contradictions(self) -> Iterator[Problem]:
        if len(set(self.steps)) < len(self.steps):
            yield Problem(("steps",), "`steps` are distinct", str(self.steps), "remove the repeated one")
        for field in ("equality", "max_abs_difference", "max_relative_difference"):
            if self.baseline is None and getattr(self, field) is not None:
                remedy = f"name one, or leave `{field}` out"
                yield Problem(
                    (field,), f"`{field}` compares with a baseline, so the claim must name a `baseline`", "none", remedy
                )
        if self.control is not None and self.equality != "within":
            rule = "`control` is only for arms that are compared within a bound"
            yield Problem(("control",), rule, f"`{self.equality}`", "leave `control` out, or write `equality: within`")

    def replicas(self) -> dict[str, int]:
        # If the baseline does not repeat its own bits, a claim of equal bits is undecided. So execute the baseline
        # twice.
        return {self.baseline: 2} if self.baseline is not None and self.equality == "bitwise" else {}

    def compared(self) -> list[list[str]]:
        # the baseline's repetition is not listed, because its gradients are not needed
        return [sorted(set(self.arms().values()))]

    def candidate_capabilities(self) -> frozenset[str]:
        reads_norms = self.clipped_norm is not None or self.clip_active_steps is not None
        return frozenset({"gradient_norms"} if reads_norms else ())

    def baseline_capabilities(self) -> frozenset[str]:
        return frozenset({"gradient_norms"} if self.clip_active_steps else ())

    def gradients(self) -> GradientDemand:
        return GradientDemand(self.candidate, self.baseline, self.steps, control=self.control)
