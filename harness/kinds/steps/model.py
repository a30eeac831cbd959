"""Define judgements about single steps: against a reference's, and by their errors next to a peer's."""

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
    """Every step of the candidate is, within rounding, the reference's step from the state that it had before."""

    kind: Literal["step_match"]
    """Judges loss, gradients, Adam's moments and parameters of every step against a reference."""
    candidate: ArmName
    """The arm whose steps are judged."""
    reference: ArmName
    """The arm that makes the same steps one by one, in higher precision."""
    yardstick: ArmName
    """The reference in the candidate's precision: how far rounding leads from it."""
    steps: StepsCompared
    """Steps that must have been compared."""
    max_evaluation_error: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_evaluation_error")]
    """Largest relative error of the loss, of a norm before the clip, and of a gradient after it, in the L2 norm."""
    times_yardstick: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_evaluation_error")]
    """Or this multiple of the yardstick's own largest error of that quantity up to the step, where that is more."""
    max_update_error: Annotated[Positive, Demand("exceeds_tolerance", exceeded="max_update_error")]
    """Largest error of an element of a moment or parameter, relative to the absolute values it is computed from."""

    # Nothing is planted in the reference: a fault of both arms is one of every arm that the trainer itself runs.
    baseline_path: ClassVar[str] = "candidate"

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"moments"})

    def process_count(self) -> int:
        return 1


Seeds = Annotated[list[Natural], Field(min_length=1)]


class StepAccuracy(Judged):
    """A step errs no more against a reference of higher precision than a peer of the step's own precision does."""

    kind: Literal["step_accuracy"]
    """Judges a step's errors against a reference, as multiples of a peer's errors against it."""
    candidate: ArmName
    """The arm under test."""
    peer: ArmName
    """The arm of another implementation in the candidate's precision."""
    reference: ArmName
    """The arm of another implementation in a higher precision."""
    gradient_seeds: Annotated[Seeds, MEASURED]
    """Seeds of the runs whose gradients are compared."""
    gradient_steps: ComparedSteps
    """Steps, counted from 0, at which they are compared: at the candidate's parameters and on its batch."""
    median_gradient_ratio_at_most: Annotated[
        Positive, Demand("exceeds_tolerance", exceeded_bound="median_gradient_ratio_at_most")
    ]
    """Largest median, over the trained tensors, of the candidate's gradient error over the peer's."""
    gradient_ratio_at_most: Annotated[Positive, Demand("exceeds_tolerance", exceeded_bound="gradient_ratio_at_most")]
    """Largest candidate's gradient error over the peer's of any trained tensor."""
    loss_seeds: Annotated[Seeds, MEASURED]
    """Seeds of the runs whose losses are compared over all steps of the workload, each arm on its own parameters."""
    loss_steps: StepsCompared
    """Steps that must have been compared with each of them."""
    loss_ratio_at_most: Annotated[Positive, Demand("exceeds_tolerance", exceeded_bound="loss_ratio_at_most")]
    """Largest mean absolute loss error of the candidate over the peer's."""

    def seeds(self) -> list[int]:
        """Return every seed that is run, in the order of the arms' executions."""
        return sorted({*self.gradient_seeds, *self.loss_seeds})

    def contradictions(self) -> Iterator[Problem]:
        for field in ("gradient_seeds", "gradient_steps", "loss_seeds"):
            values: list[int] = getattr(self, field)
            if len(set(values)) < len(values):
                yield Problem((field,), f"`{field}` are distinct", str(values), "remove the repeated one")
        named = list(self.arms().items())
        for at, (field, arm) in enumerate(named):
            if arm in [other for _, other in named[:at]]:
                rule = "candidate, peer and reference are three arms"
                yield Problem((field,), rule, f"'{arm}' again", "name another arm")

    def process_count(self) -> int:
        return 1  # one process: the peer and the reference take the candidate's batches and parameters from it
