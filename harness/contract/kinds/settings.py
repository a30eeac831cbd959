"""The kind of judgement about a setting that must make a difference, such as the seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.contract.base import Count, Demand, Judged, Name


class RunsDiffer(Judged):
    """Two arms that differ in a setting differ in their losses, and in what else it must reach."""

    kind: Literal["runs_differ"]
    """Judges that a setting, such as the seed, reaches what it is there for."""
    candidate: Name
    """The arm with the other setting."""
    baseline: Name
    """The arm that differs from it in that setting alone."""
    steps: Count
    """Steps that must have been compared."""
    losses_from: Annotated[int, Field(ge=0)]
    """The first step, counted from 0, from which on the losses differ in bits at every step."""
    batches: bool = False
    """Whether the arms read another batch at every step."""
    start: bool = False
    """Whether the arms start from other trainable parameters."""

    broken_by: ClassVar = {
        "steps": Demand(("vacuous_steps",)),
        "losses_from": Demand(("losses_equal",)),
        "batches": Demand(("batches_equal",)),
        "start": Demand(("start_equal",)),
    }
    no_demand: ClassVar = {"candidate": "names an arm", "baseline": "names an arm"}

    def compared(self) -> list[list[str]]:
        return []  # by series and digests alone

    def step_counts(self) -> dict[str, int | None]:
        return {"steps": self.steps}

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        if self.losses_from >= steps:
            yield ("losses_from",), f"`losses_from` ({self.losses_from}) is one of the workload's steps, from 0"
