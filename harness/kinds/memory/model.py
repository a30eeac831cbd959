"""Define the claims about device memory: an arm's peak, and that memory does not grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import model_validator

from harness.contract.base import ArmName, Count, Demand, Judged, Name, NoDemand, NonNegative, Positive, Problem, refuse
from harness.kinds.speed.model import trajectory_problems
from harness.numbers import counted


class PeakMemory(Judged):
    """The candidate's peak of device memory is at most a number of GiB, or at most a multiple of the baseline's peak.

    Each arm has a process and the GPU to itself. A claim has one bound, so that a drill can break each bound alone.
    """

    kind: Literal["peak_memory"]
    """Judges the most device memory that the candidate held at one time."""
    candidate: ArmName
    """The arm whose memory is bounded."""
    baseline: ArmName
    """The plain arm. The candidate must train like it, and `at_most_ratio` is relative to its peak."""
    at_most_gib: Annotated[Positive | None, Demand("peak_memory")] = None
    """Largest peak of the candidate, in GiB (2^30 bytes)."""
    at_most_ratio: Annotated[Positive | None, Demand("peak_ratio")] = None
    """Largest peak of the candidate as a multiple of the baseline's."""
    of: Annotated[Literal["allocated", "reserved"], NoDemand("chooses which bytes are judged")] = "allocated"
    """The bytes that are bounded: those of tensors, or those that torch's allocator took from the device."""
    over: Annotated[Literal["run", "steps"], NoDemand("chooses which peak is judged")] = "run"
    """`run`: from the opening of the arm to its last step; `steps`: from its first step, including a capture in it."""
    outside_at_most_gib: Annotated[Positive, Demand("memory_outside_allocator")] = 1.0
    """Most device memory outside torch's allocator, in GiB by the driver's count: context, code of kernels, graphs.
    An H200 showed 0.76; much more means that a library allocates by itself."""
    trajectory: Annotated[Name, Demand("differs", "exceeds_tolerance")]
    """The trajectory_match claim of this contract that the measured steps must satisfy."""

    @model_validator(mode="after")
    def _one_bound(self) -> PeakMemory:
        if (self.at_most_gib is None) == (self.at_most_ratio is None):
            refuse("give either `at_most_gib` or `at_most_ratio`; for both bounds, make two claims", "kind")
        return self

    def asks_the_device(self) -> bool:
        return True

    def dangling_names(
        self,
        on: Sequence[str],  # noqa: ARG002
        claims: Mapping[str, Sequence[Judged]],
    ) -> Iterator[Problem]:
        yield from trajectory_problems(self.trajectory, claims)

    def process_count(self) -> int:
        return len(self.arms())

    def arms_of(self, process: int) -> list[str]:
        return [[self.baseline, self.candidate][process]]


class MemorySteady(Judged):
    """Memory does not grow after the first `after` samples. There is one sample for each step or re-capture."""

    kind: Literal["memory_steady"]
    """Judges the growth of device memory."""
    candidate: ArmName
    """The captured arm."""
    per: Annotated[Literal["replay", "recapture"], NoDemand("chooses what is sampled")]
    """Whether memory is sampled after every replay or after every re-capture."""
    after: Annotated[
        Count,
        NoDemand("the number of first samples that are left out; the loader refuses a claim if no sample follows them"),
    ]
    """Number of first samples that are left out as warm-up."""
    growth_at_most: Annotated[NonNegative, Demand("memory_grows")]
    """Largest relative growth after the warm-up."""
    of: Annotated[Literal["allocated_and_reserved", "reserved"], NoDemand("chooses which bytes are judged")] = (
        "allocated_and_reserved"
    )
    """The bytes that must not grow. Only `reserved` (what torch's allocator took from the device) can stay exactly
    equal, because the harness keeps the losses of some steps in allocated memory."""

    def asks_the_device(self) -> bool:
        return True

    def chosen_probe(self) -> str:
        return "recapture" if self.per == "recapture" else "paired"

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.per == "replay" and self.after >= steps:
            yield ("after",), f"a step must follow the first {counted(self.after, 'step')} (`after`)"
