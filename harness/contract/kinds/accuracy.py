"""Kind of judgement about the plain step's accuracy: its errors beside those of another implementation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.contract.base import Count, Demand, Judged, Name, Positive, Problem

Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class StepAccuracy(Judged):
    """A step errs no more against a reference of higher precision than a peer of the step's own precision does."""

    kind: Literal["step_accuracy"]
    """Judges a step's errors against a reference, as multiples of a peer's errors against it."""
    candidate: Name
    """The arm under test."""
    peer: Name
    """The arm of another implementation in the candidate's precision."""
    reference: Name
    """The arm of another implementation in a higher precision."""
    gradient_seeds: Seeds
    """Seeds of the runs whose gradients are compared."""
    gradient_steps: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """Steps, counted from 0, at which they are compared: at the candidate's parameters and on its batch."""
    median_gradient_ratio_at_most: Positive
    """Largest median, over the trained tensors, of the candidate's gradient error over the peer's."""
    gradient_ratio_at_most: Positive
    """Largest candidate's gradient error over the peer's of any trained tensor."""
    loss_seeds: Seeds
    """Seeds of the runs whose losses are compared over all steps of the workload, each arm on its own parameters."""
    loss_steps: Count
    """Steps that must have been compared with each of them."""
    loss_ratio_at_most: Positive
    """Largest mean absolute loss error of the candidate over the peer's."""

    broken_by: ClassVar = {
        "loss_steps": Demand(("vacuous_steps",)),
        **{
            name: Demand(("exceeds_tolerance",), {"exceeded_bound": name})
            for name in ("median_gradient_ratio_at_most", "gradient_ratio_at_most", "loss_ratio_at_most")
        },
    }
    no_demand: ClassVar = {
        "candidate": "names an arm",
        "peer": "names an arm",
        "reference": "names an arm",
        "gradient_seeds": "how much is measured: fewer are an ERROR",
        "gradient_steps": "chooses the steps that are compared; one without gradients is an ERROR",
        "loss_seeds": "how much is measured: fewer are an ERROR",
    }

    def arms(self) -> dict[str, str]:
        return {"candidate": self.candidate, "peer": self.peer, "reference": self.reference}

    def seeds(self) -> list[int]:
        """Every seed that is run, in the order of the arms' executions."""
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

    def step_counts(self) -> dict[str, int | None]:
        return {"loss_steps": self.loss_steps}

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        for position, step in enumerate(self.gradient_steps):
            if step >= steps:
                yield ("gradient_steps", position), f"step {step} is one of the workload's steps, counted from 0"

    def process_count(self) -> int:
        return 1  # one process: the peer and the reference take the candidate's batches and parameters from it
