"""Define the claim `not_worse`: over several seeds, the candidate's metric is not worse than the baseline's metric."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.contract.base import (
    CONFIDENCE,
    MEASURED,
    ArmName,
    Count,
    CountsSteps,
    Demand,
    Metric,
    Natural,
    NoDemand,
    Positive,
    Problem,
    refuse,
)
from harness.contract.guards import Guarding, Guards
from harness.kinds.trajectory.model import Precisions

FEWEST_SEEDS = 5  # with fewer seeds, a confidence of 0.95 cannot be reached; with 5 seeds, all seeds must agree
MOST_SEEDS = 64


class NotWorse(Guarding):
    """Over several seeds, the candidate's metric is not worse than the baseline's metric by more than a margin."""

    kind: Literal["not_worse"]
    """Compares a metric of two arms over several seeds. A confidence interval of the differences decides."""
    candidate: ArmName
    """The arm under test."""
    baseline: ArmName
    """The arm that the candidate is compared with. With each seed, both arms have equal starts and batches."""
    metric: Annotated[Metric, NoDemand("names a series")] = "loss"
    """The compared quantity: the loss, or a metric that the systems of both arms report."""
    direction: Annotated[Literal["lower_is_better", "higher_is_better"], Demand("worse")]
    """The better values of the metric: the lower ones or the higher ones."""
    last: Annotated[Count, NoDemand("states over how many steps the compared value is averaged"), CountsSteps()]
    """Number of last steps over which the metric is averaged; 1 for the final value."""
    margin: Annotated[Positive | None, Demand("worse")] = None
    """Largest difference by which the candidate may be worse, in the metric's unit."""
    relative_margin: Annotated[Positive | None, Demand("worse")] = None
    """Per seed, the largest amount by which the candidate may be worse, relative to the baseline's absolute value."""
    seeds: Annotated[list[Natural], Field(min_length=FEWEST_SEEDS, max_length=MOST_SEEDS), MEASURED]
    """The seeds. Each seed gives one difference between the arms."""
    save_at: Annotated[Count | None, NoDemand("chooses the step of the save; evidence of another step is an ERROR")] = (
        None
    )
    """With each seed, the candidate is saved after this many steps, its process ends, and another process resumes the
    training. The system then needs the capability `resume`. Without `save_at`, the candidate is not interrupted."""
    confidence: Annotated[float, Field(ge=0.95, lt=1), CONFIDENCE] = 0.95
    """One-sided confidence of the interval of the trimmed mean of the differences."""
    precisions: Precisions | None = None
    """The precisions in which the two arms must compute, if the arms differ in precision. The frozen tensors of the
    arms then have different formats. They are not compared, but they must not change during training."""
    guards: Guards
    """Conditions that each seed must meet before the claim can pass. The control must have the candidate's settings."""

    @model_validator(mode="after")
    def _has_one_margin(self) -> Self:
        if (self.margin is None) == (self.relative_margin is None):
            refuse("the claim needs exactly one margin; give either `margin` or `relative_margin`", "kind")
        return self

    def contradictions(self) -> Iterator[Problem]:
        if len(set(self.seeds)) < len(self.seeds):
            yield Problem(("seeds",), "`seeds` must not name a seed twice", str(self.seeds), "remove the repeated seed")
        if self.precisions is not None and self.precisions.candidate == self.precisions.baseline:
            rule = "`precisions` must be two different precisions"
            yield Problem(("precisions",), rule, f"`{self.precisions.candidate}` for both")

    def undecidable(self) -> Iterator[Problem]:
        # If the candidate is worse by exactly the margin, all n seeds agree by chance with a probability of 2^-n. This
        # probability must not be larger than 1 - confidence.
        needed, seeds = math.ceil(-math.log2(1 - self.confidence) - 1e-9), len(self.seeds)
        if seeds < needed:
            rule = (
                f"{seeds} seeds cannot reach a verdict: even if all {seeds} seeds agree, chance explains it with a "
                f"probability of {2.0**-seeds:.3g}, above 1 - confidence = {1 - self.confidence:.3g}; use at least "
                f"{needed}"
            )
            yield Problem(("seeds",), rule)

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        if self.save_at is not None and self.save_at >= steps:
            yield ("save_at",), f"`save_at` ({self.save_at}) must be smaller than the workload's number of steps"

    def candidate_capabilities(self) -> frozenset[str]:
        needed = {"metrics": self.metric != "loss", "resume": self.save_at is not None}
        return super().candidate_capabilities() | {name for name, needs in needed.items() if needs}

    def baseline_capabilities(self) -> frozenset[str]:
        return self.candidate_capabilities() - {"resume"}

    def chosen_probe(self) -> str:
        return "seeds" if self.save_at is None else "resumed_seeds"

    def process_count(self) -> int:
        # Use one process for all seeds, because starting a process for each seed takes longer than a small training.
        return 1
