"""Kinds of judgement about a captured step: the capture itself, waits for the device, memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.contract.base import Count, Judged, Name, NonNegative, Strict, refuse


class Capture(Judged):
    """The step was captured, cleanly and completely, and every replay did the work of one step."""

    kind: Literal["capture"]
    """Judges that a step was captured and replayed."""
    candidate: Name
    """The captured arm."""
    captures: Count = 1
    """Exact number of captures: one for each shape."""
    nodes_at_least: Count = 1
    """Fewest nodes of a graph."""
    nodes_at_most: Count | None = None
    """Most nodes of a graph."""
    kernels_per_layer_at_least: Count | None = None
    """Fewest kernels in the graph for each of the model's layers."""
    clipped_tensors_per_layer: Count | None = None
    """Tensors a layer whose clip runs inside the graph, exactly."""
    skipped_steps_at_most: Annotated[int, Field(ge=0)] = 0
    """Updates that may be left out for a non-finite loss or gradient."""


class SyncCount(Strict):
    """A count of host syncs in one step of one arm: exact, or an upper bound; `per_layer` times the layers."""

    arm: Name
    """The arm whose host syncs are counted."""
    exactly: Annotated[int, Field(ge=0)] | None = None
    """The exact count in one step."""
    at_most: Annotated[int, Field(ge=0)] | None = None
    """The largest count in one step."""
    per_layer: bool = False
    """Multiply the count by the model's layers."""

    @model_validator(mode="after")
    def _one_bound(self) -> SyncCount:
        if (self.exactly is None) == (self.at_most is None):
            refuse("say either `exactly` or `at_most`", "arm")
        return self


class HostSyncs(Judged):
    """The candidate waits for the device as often as demanded, and the control shows that we would see it."""

    kind: Literal["host_syncs"]
    """Judges how often a step waits for the device."""
    candidate: SyncCount
    """The count demanded."""
    control: SyncCount
    """An arm that synchronizes, with its exact count: the proof that syncs are seen."""


class MemorySteady(Judged):
    """Memory does not grow after the first `after` samples (a sample a step, or a re-capture)."""

    kind: Literal["memory_steady"]
    """Judges the growth of device memory."""
    candidate: Name
    """The captured arm."""
    per: Literal["replay", "recapture"]
    """A sample after every replay, or after every re-capture."""
    after: Count
    """First samples that are left out as warm-up."""
    growth_at_most: NonNegative
    """Largest relative growth after the warm-up."""
