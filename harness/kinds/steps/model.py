"""Define the claims about single steps: `step_match` (each step equals the step of a reference) and `step_accuracy`
(the errors of steps do not exceed those of a peer)."""

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
    """Each step of the candidate gives the result of the reference's step from the same state, except for rounding."""

    kind: Literal["step_match"]
    """Compares the loss, the gradients, Adam's moments and the parameters of every step with those of a reference."""
    candidate: ArmName
    """The arm whose steps are judged."""
    reference: ArmName
    """The arm that makes each step from the candidate's state, in higher precision."""
    yardstick: ArmName
    """An arm that executes the reference in the candidate's precision. It shows how large rounding errors are."""
    steps: StepsCompared
    """Number of steps that must have been compared."""
    max_evaluation_error: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_evaluation_error")]
    """Largest allowed relative error, in L2 norms, of the loss, norms before the clip and gradients after it."""
    times_yardstick: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_evaluation_error")]
    """A factor. If the yardstick's largest error so far, multiplied by this factor, exceeds `max_evaluation_error`, the
    product is the bound instead."""
    max_update_error: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_update_error")]
    """Largest allowed error of an element of a moment or parameter, relative to the sum of the absolute values of the
    terms from which the element is computed."""

    # A drill plants no fault in the reference, because the reference is not the trainer's code. If a fault must be in
    # both arms, it is planted in the arms that the trainer executes.
    baseline_path: ClassVar[str] = "candidate"

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"moments"})

    def process_count(self) -> int:
        return 1


Seeds = Annotated[list[Natural], Field(min_length=1)]


class StepAccuracy(Judged):
    """The candidate's errors do not exceed the errors of a peer, which has the same precision. Errors are differences
    from a reference in higher precision."""

    kind: Literal["step_accuracy"]
    """Measures the candidate's errors against a reference, as multiples of a peer's errors."""
    candidate: ArmName
    """The arm under test."""
    peer: ArmName
    """The arm that uses another implementation, in the candidate's precision."""
    reference: ArmName
    """The arm that uses another implementation, in a higher precision."""
    gradient_seeds: Annotated[Seeds, MEASURED]
    """Seeds of the runs whose gradients are compared."""
    gradient_steps: ComparedSteps
    """Steps, counted from 0, at which gradients are compared. The peer and the reference compute them at the
    candidate's parameters and on its batch."""
    median_gradient_ratio_at_most: Annotated[
        Positive, Demand("exceeds_tolerance", exceeded_bound="median_gradient_ratio_at_most")
    ]
    """Largest allowed median, over trained tensors, of the ratio of the candidate's gradient error to the peer's."""
    gradient_ratio_at_most: Annotated[Positive, Demand("exceeds_tolerance", exceeded_bound="gradient_ratio_at_most")]
    """Largest allowed ratio of the candidate's gradient error to the peer's gradient error, for any trained tensor."""
    loss_seeds: Annotated[Seeds, MEASURED]
    """Seeds of the runs whose losses are compared over all steps of the workload. Each arm trains independently."""
    loss_steps: StepsCompared
    """Number of steps that must have been compared with each seed in `loss_seeds`."""
    loss_ratio_at_most: Annotated[Positive, Demand("exceeds_tolerance", exceeded_bound="loss_ratio_at_most")]
    """Largest allowed ratio of the candidate's mean absolute loss error to the peer's mean absolute loss error."""

    def seeds(self) -> list[int]:
        """Return all seeds, in the order in which the arms execute them."""
        return sorted({*self.gradient_seeds, *self.loss_seeds})

    def contradictions(self) -> Iterator[Problem]:
        for field in ("gradient_seeds", "gradient_steps", "loss_seeds"):
            values: list[int] = getattr(self, field)
            if len(set(values)) < len(values):
                yield Problem((field,), f"`{field}` must not name a number twice", str(values), "remove the repetition")
        named = list(self.arms().items())
        for at, (field, arm) in enumerate(named):
            if arm in [other for _, other in named[:at]]:
                rule = "candidate, peer and reference must be three different arms"
                yield Problem((field,), rule, f"'{arm}' again", "name another arm")

    def process_count(self) -> int:
        # Use one process, because the parameters that peer and reference read from the candidate are on the device.
        return 1
