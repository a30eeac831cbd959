"""The kind of judgement about a step that takes its batch in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.contract.base import Demand, GradientDemand, Judged, Name, Positive, Problem


class Accumulation(Judged):
    """A step of k micro-batches is the step of one batch: all are read, and one update is made of their mean."""

    kind: Literal["accumulation"]
    """Judges gradients that are accumulated over micro-batches."""
    candidate: Name
    """The arm that takes each batch in micro-batches; its inputs have one more leading dimension, of their number."""
    baseline: Name
    """The arm that takes the same batch at once."""
    micro_batches: Annotated[int, Field(ge=2)]
    """Micro-batches of a step, each another one."""
    steps: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """Steps, counted from 0, at which gradients, norms before clipping and loss are compared. What is left over from
    the step before shows in a second step at the earliest; much later the arms' roundings have moved them apart."""
    max_relative_difference: Positive
    """Largest difference from the one batch: of a gradient's elements relative to the largest one of its tensor, of
    norms and losses relative to themselves. It allows for rounding alone: the same terms are added in another order."""

    broken_by: ClassVar = {
        "micro_batches": Demand(("micro_batch_count",)),
        "max_relative_difference": Demand(("differs_from_one_batch",)),
    }
    no_demand: ClassVar = {
        "candidate": "names an arm",
        "baseline": "names an arm",
        "steps": "chooses the steps that are compared; one without gradients is an ERROR",
    }

    def contradictions(self) -> Iterator[Problem]:
        if len(set(self.steps)) < len(self.steps):
            yield Problem(("steps",), "`steps` are distinct", str(self.steps), "remove the repeated one")

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        for position, step in enumerate(self.steps):
            if step >= steps:
                yield ("steps", position), f"step {step} is one of the workload's steps, counted from 0"

    def gradients(self) -> GradientDemand:
        return GradientDemand(self.candidate, self.baseline, self.steps)

    def recorded_of(self) -> dict[str, dict[str, int | str]]:
        return {self.candidate: {"micro_batches": self.micro_batches}}
