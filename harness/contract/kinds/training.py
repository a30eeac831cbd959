"""Kinds of judgement about training: series, gradients, repeated runs, and what guards them."""

# ruff: noqa: RUF012 - pydantic copies defaults, and ruff knows its models in the file of their base only

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.contract.base import Count, Equality, Judged, Name, NonNegative, Positive, Strict, refuse


class TrainingEffect(Strict):
    """The candidate's mean loss over the last steps lies below the untrained control's by at least this."""

    control: Name
    """The arm that trains nothing (learning rate 0) on the same batches."""
    last: Count
    """How many last steps are averaged."""
    at_least: Positive
    """Smallest difference of the mean losses that counts as training."""
    at_least_on: dict[Name, Positive] = {}
    """The same for single workloads, by name: a model that starts from random weights has far to fall."""


class Guards(Strict):
    """What must be true before PASS may be said; unmet, the verdict is FAIL with a `vacuous_…` code."""

    steps: Count
    """Steps that must have been compared."""
    distinct_batches: Count | None = None
    """Distinct batches, by digest, that must have been seen."""
    clip_active_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in which the clip must have scaled at least one group."""
    training_effect: TrainingEffect | None = None
    """How much the training must have lowered the loss."""


class TrajectoryMatch(Judged):
    """Two series agree at every step (or at the final one), in bits or within a bound."""

    kind: Literal["trajectory_match"]
    """Judges one series of two arms against each other."""
    candidate: Name
    """The optimized arm."""
    baseline: Name
    """The plain arm."""
    metric: Literal["loss"] = "loss"
    """The series compared."""
    equality: Equality
    """`bitwise`: every bit decides; `within`: `max_abs_difference` alone does."""
    max_abs_difference: Positive
    """Largest absolute difference allowed; shown beside the bits under `bitwise`."""
    compare: Literal["every", "final"] = "every"
    """At every step, or at the last one only."""
    guards: Guards
    """What must be true before PASS may be said."""


class ClippedNorm(Strict):
    """After clipping, every group's norm is at most `at_most` x (1 + relative_rounding)."""

    at_most: Positive
    """The clip's threshold."""
    relative_rounding: NonNegative
    """Allowance for rounding, relative to the threshold."""


class GradientMatch(Judged):
    """Gradients of every trainable tensor agree at the chosen steps, and clipped norms keep the threshold."""

    kind: Literal["gradient_match"]
    """Judges gradients against a baseline, clipped norms against a threshold, or both."""
    candidate: Name
    """The optimized arm."""
    baseline: Name | None = None
    """The plain arm; left out, only the clipped norms are judged."""
    steps: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """Steps, counted from 0, at which gradients are reduced and compared."""
    equality: Equality | None = None
    """`bitwise`: digests decide; `within`: the bounds do."""
    max_abs_difference: Positive | None = None
    """Largest absolute difference of any element."""
    max_relative_difference: Positive | None = None
    """Largest difference relative to the baseline tensor's largest element."""
    clipped_norm: ClippedNorm | None = None
    """The threshold that every group's norm keeps after clipping."""
    clip_active_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in which the clip must have scaled at least one group."""

    @model_validator(mode="after")
    def _demands_something(self) -> GradientMatch:
        if self.baseline is None and self.clipped_norm is None:
            refuse("gradient_match demands `baseline`, `clipped_norm` or both", "kind")
        if self.baseline is not None:
            bounds = (self.max_abs_difference, self.max_relative_difference)
            if self.equality is None or (self.equality == "within" and bounds == (None, None)):
                refuse("with a baseline, say `equality` and, for `within`, a bound", "baseline")
        return self


class Repeatability(Judged):
    """N runs of one arm with one seed agree, in bits or within a bound."""

    kind: Literal["repeatability"]
    """Judges runs of one arm with one seed against each other."""
    candidate: Name
    """The arm that is run again."""
    runs: Annotated[int, Field(ge=2, le=32)] = 2
    """How many runs."""
    equality: Equality
    """`bitwise`: every bit decides; `within`: `max_abs_difference` alone does."""
    max_abs_difference: Positive
    """Largest absolute difference allowed; shown beside the bits under `bitwise`."""
    guards: Guards
    """What must be true before PASS may be said."""
