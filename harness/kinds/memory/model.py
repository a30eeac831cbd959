"""Define the claims about device memory: `peak_memory` (an arm's peak is bounded) and `memory_steady` (no growth)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import model_validator

from harness.contract.base import ArmName, Count, Demand, Judged, Name, NoDemand, NonNegative, Positive, Problem, refuse
from harness.kinds.speed.model import trajectory_problems
from harness.numbers import counted


class PeakMemory(Judged):
    """The candidate's peak of device memory is at most a number of GiB, or at most a multiple of the baseline's peak.

    Each arm is executed in a separate process, and no other process uses the GPU. A claim has only one bound, so that a
    drill can test each bound separately.
    """

    kind: Literal["peak_memory"]
    """Judges the most device memory that the candidate held at one time."""
    candidate: ArmName
    """The arm whose memory is bounded."""
    baseline: ArmName
    """The plain arm. The candidate must train as this arm does, and `at_most_ratio` is relative to this arm's peak."""
    at_most_gib: Annotated[Positive | None, Demand("peak_memory")] = None
    """Largest allowed peak of the candidate, in GiB (2^30 bytes)."""
    at_most_ratio: Annotated[Positive | None, Demand("peak_ratio")] = None
    """Largest allowed peak of the candidate, as a multiple of the baseline's peak."""
    of: Annotated[Literal["allocated", "reserved"], NoDemand("chooses which bytes are judged")] = "allocated"
    """The bytes that count. `allocated`: bytes of tensors. `reserved`: bytes that torch took from the device."""
    over: Annotated[Literal["run", "steps"], NoDemand("chooses which peak is judged")] = "run"
    """The time in which the peak is measured. `run`: from the opening of the arm to its last step. `steps`: from the
    first step to the last step, including a capture in the first step."""
    outside_at_most_gib: Annotated[Positive, Demand("memory_outside_allocator")] = 1.0
    """Largest allowed device memory outside torch's allocator, in GiB, as counted by the driver. This memory contains
    the CUDA context, the code of kernels, and graphs. On an H200 it was 0.76 GiB. If it is much larger, a library
    allocates memory without torch."""
    trajectory: Annotated[Name, Demand("differs", "exceeds_tolerance")]
    """The trajectory_match claim of this contract that the measured steps must satisfy."""

    @model_validator(mode="after")
    def _one_bound(self) -> PeakMemory:
        if (self.at_most_gib is None) == (self.at_most_ratio is None):
            refuse(
                "the claim needs exactly one bound; give either `at_most_gib` or `at_most_ratio`, or write two claims",
                "kind",
            )
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
    """Device memory does not grow after the first `after` samples. It is sampled after each step or re-capture."""

    kind: Literal["memory_steady"]
    """Judges the growth of device memory."""
    candidate: ArmName
    """The captured arm."""
    per: Annotated[Literal["replay", "recapture"], NoDemand("chooses what is sampled")]
    """When memory is sampled: after every replay, or after every re-capture."""
    after: Annotated[
        Count,
        NoDemand("the number of first samples that are left out; the loader refuses a claim if no sample follows them"),
    ]
    """Number of first samples that are left out as warm-up."""
    growth_at_most: Annotated[NonNegative, Demand("memory_grows")]
    """Largest allowed relative growth after the warm-up; 0.01 is 1 %."""
    of: Annotated[Literal["allocated_and_reserved", "reserved"], NoDemand("chooses which bytes are judged")] = (
        "allocated_and_reserved"
    )
    """The bytes that must not grow. Allocated bytes are bytes of tensors. Reserved bytes are bytes that torch's
    allocator took from the device. Only reserved bytes can stay equal, because the harness keeps losses in tensors."""

    def asks_the_device(self) -> bool:
        return True

    def chosen_probe(self) -> str:
        return "recapture" if self.per == "recapture" else "paired"

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.per == "replay" and self.after >= steps:
            yield ("after",), f"at least one step must follow after the first {counted(self.after, 'step')} (`after`)"
