"""Define the claims about single steps: each equals a reference's step, or its errors do not exceed a peer's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.contract.base import (
    MEASURED,
    ArmName,
    ComparedSteps,
    Demand,
    Judged,
    Natural,
    Positive,
    Problem,
    StepsCompared,
)


class StepMatch(Judged):
    """Every step of the candidate equals, within rounding, the reference's step from the same state."""

    kind: Literal["step_match"]
    """Judges loss, gradients, Adam's moments and parameters of every step against a reference."""
    candidate: ArmName
    """The arm whose steps are judged."""
    reference: ArmName
    """The arm that makes each step from the candidate's state, in higher precision."""
    yardstick: ArmName
    """The reference in the candidate's precision. It shows how much rounding alone differs from the reference."""
    steps: StepsCompared
    """Steps that must have been compared."""
    max_evaluation_error: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_evaluation_error")]
    """Largest relative error of the loss, of norms before the clip, and of gradients after it, by their L2 norm."""
    times_yardstick: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_evaluation_error")]
    """If this multiple of the yardstick's largest error so far exceeds `max_evaluation_error`, the multiple is the
    bound."""
    max_update_error: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_update_error")]
    """Largest error of an element of a moment or parameter, relative to the absolute values of its terms."""

    # A drill plants no fault in the reference, because the trainer does not run it. A fault of both arms is planted in
    # the arms that the trainer runs.
    baseline_path: ClassVar[str] = "candidate"

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"moments"})

    def process_count(self) -> int:
        return 1


Seeds = Annotated[list[Natural], Field(min_length=1)]


class StepAccuracy(Judged):
    """Against a reference in higher precision, a step's errors do not exceed a peer's in the step's own precision."""

    kind: Literal["step_accuracy"]
    """Judges a step's errors against a reference, as multiples of a peer's errors."""
    candidate: ArmName
    """The arm under test."""
    peer: ArmName
    """The arm of another implementation in the candidate's precision."""
    reference: ArmName
    """The arm of another implementation in a higher precision."""
    gradient_seeds: Annotated[Seeds, MEASURED]
    """Seeds of the runs whose gradients are compared."""
    gradient_steps: ComparedSteps
    """Steps, counted from 0, at which gradients are compared, with the candidate's parameters and batch."""
    median_gradient_ratio_at_most: Annotated[
        Positive, Demand("exceeds_tolerance", exceeded_bound="median_gradient_ratio_at_most")
    ]
    """Largest median over trained tensors of (candidate's gradient error / peer's gradient error)."""
    gradient_ratio_at_most: Annotated[Positive, Demand("exceeds_tolerance", exceeded_bound="gradient_ratio_at_most")]
    """Largest (candidate's gradient error / peer's gradient error) of any trained tensor."""
    loss_seeds: Annotated[Seeds, MEASURED]
    """Seeds of the runs whose losses are compared over all steps of the workload, each arm on its own parameters."""
    loss_steps: StepsCompared
    """Steps that must have been compared with each of these seeds."""
    loss_ratio_at_most: Annotated[Positive, Demand("exceeds_tolerance", exceeded_bound="loss_ratio_at_most")]
    """Largest (candidate's mean absolute loss error / peer's mean absolute loss error)."""

    def seeds(self) -> list[int]:
        """Return all seeds, in the order in which the arms execute them."""
        return sorted({*self.gradient_seeds, *self.loss_seeds})

    def contradictions(self) -> Iterator[Problem]:
        for field in ("gradient_seeds", "gradient_steps", "loss_seeds"):
            values: list[int] = getattr(self, field)
            if len(set(values)) < len(values):
                yield Problem((field,), f"`{field}` are distinct", str(values), "remove the repeated one")
        named = list(self.arms().items())
        for at, (field, arm) in enumerate(named):
            if arm in [other for _, other in named[:at]]:
                rule = "candidate, peer and reference must be three different arms"
                yield Problem((field,), rule, f"'{arm}' again", "name another arm")

    def process_count(self) -> int:
        return 1  # use one process, because the peer and the reference take the batches and parameters of the candidate
