"""Define claims about captures: `capture`, `capture_fallback` (a failed capture), `host_syncs` and `long_replay`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from harness.contract.base import (
    ArmName,
    Count,
    CountsSteps,
    Demand,
    Judged,
    Natural,
    NoDemand,
    NonNegative,
    Nothing,
    OptionalArm,
    Positive,
    Problem,
    Share,
    StepsCompared,
    Strict,
    refuse,
)
from harness.numbers import counted


class Capture(Judged):
    """A step was captured completely, and every replay did the work of one step."""

    kind: Literal["capture"]
    """Judges that a step was captured and replayed."""
    candidate: ArmName
    """The captured arm."""
    captures: Annotated[Count, Demand("wrong_capture_count"), CountsSteps()] = 1
    """Exact number of captures."""
    per_shape: Annotated[bool, NoDemand("the unit of the number of captures")] = False
    """If true, `captures` is the largest allowed number of captures for each shape of batch that the run read. A step
    that pads its batches may need fewer captures. A run with as many captures as steps always fails."""
    nodes_at_least: Annotated[Count, Demand("node_count")] = 1
    """Smallest number of nodes that each capture must have."""
    nodes_at_most: Annotated[Count | None, Demand("node_count")] = None
    """Largest number of nodes that a capture may have."""
    kernels_per_layer_at_least: Annotated[Count | None, Demand("kernels_per_layer")] = None
    """Smallest number of kernels per layer of the model: all kernels of a capture, divided by the number of layers."""
    kernels_in_every_layer: Annotated[Count | None, Demand("kernels_per_layer")] = None
    """Smallest number of kernels in every layer. In a model of L layers, L launches of kernels with the same name count
    as one kernel in every layer."""
    clipped_tensors_per_layer: Annotated[Count | None, Demand("clipped_tensors")] = None
    """Exact number of tensors per layer that are clipped inside the graph."""
    skipped_steps_at_most: Annotated[Natural, Demand("skipped_steps")] = 0
    """Largest number of updates that may be left out because a loss or gradient is not finite."""
    outside_share_at_most: Annotated[Share, Demand("work_outside_graphs"), Nothing(1.0)] = 0.05
    """Largest share of a step's device time that kernels outside the step's graphs may take. Copies do not count."""
    outside_operations_at_most: Annotated[Natural, Demand("work_outside_graphs")] = 100
    """Largest number of ATen operations that a step may issue outside its graphs. For a traced replay, only the
    operations of `StepFunction(…, after=…)` count, and only if the claim sets this field."""

    def asks_the_device(self) -> bool:
        """Return True if the claim is about kernels or clipped tensors, which can be counted only in a CUDA graph."""
        counted = (self.kernels_per_layer_at_least, self.kernels_in_every_layer, self.clipped_tensors_per_layer)
        return any(demand is not None for demand in counted)

    def can_bite(self, path: str) -> bool:
        if path in ("outside_share_at_most", "outside_operations_at_most"):
            # The replay of a step that was recorded without a GPU is judged by other bounds. With several captures, the
            # two `outside_…` bounds decide nothing: a fault that breaks them also changes the number of captures, and
            # the earlier check of this number ends the judgement.
            return self.mechanism == "cuda_graph" and self.captures == 1 and super().can_bite(path)
        # A bound of at least one node can never fail, because a graph without nodes already fails as an empty capture.
        return super().can_bite(path) and not (path == "nodes_at_least" and self.nodes_at_least == 1)

    def captures_candidate(self) -> bool:
        return True

    def contradictions(self) -> Iterator[Problem]:
        if self.nodes_at_most is not None and self.nodes_at_most < self.nodes_at_least:
            rule = "`nodes_at_most` must not be below `nodes_at_least`"
            yield Problem(("nodes_at_most",), rule, f"{self.nodes_at_most} < {self.nodes_at_least}")


class CaptureFallback(Judged):
    """A capture that fails is reported, is not tried again, and does not change the training.

    The baseline does not request a capture and must not begin a capture.
    """

    kind: Literal["capture_fallback"]
    """Judges what happens when a capture fails, and that an arm captures only if its settings request a capture."""
    candidate: ArmName
    """An arm that requests a capture. The capture cannot succeed."""
    baseline: ArmName
    """The same training without a capture."""
    attempts: Annotated[Count, Demand("capture_attempts")] = 1
    """Exact number of captures that the candidate begins, as observed by the harness."""
    unasked_at_most: Annotated[Natural, Demand("captured_unasked")] = 0
    """Largest number of captures that the baseline may begin, although it requests none."""
    steps: StepsCompared
    """Number of steps that must have been compared."""

    plain_path: ClassVar[str | None] = "baseline"

    def captures_candidate(self) -> bool:
        return True

    def uncaptured_may_begin(self) -> int:
        return self.unasked_at_most

    def compared(self) -> list[list[str]]:
        return []  # only series and digests are compared, so the arms need not share a process


class SyncCount(Strict):
    """The allowed number of host syncs in one step of one arm: an exact number or an upper bound. The number may be
    given for each layer of the model."""

    arm: ArmName
    """The arm whose host syncs are counted."""
    exactly: Annotated[Natural | None, Demand("sync_count")] = None
    """The exact number of host syncs in one step."""
    at_most: Annotated[Natural | None, Demand("sync_count")] = None
    """The largest number of host syncs in one step."""
    per_layer: Annotated[bool, NoDemand("the unit of the count")] = False
    """If true, the number is multiplied by the number of the model's layers."""

    @model_validator(mode="after")
    def _one_bound(self) -> SyncCount:
        if (self.exactly is None) == (self.at_most is None):
            refuse("a number of host syncs needs exactly one bound; give either `exactly` or `at_most`", "arm")
        return self


class SyncControl(SyncCount):
    """The exact number of host syncs in a step of an arm that waits on purpose. This proves that syncs are detected."""

    exactly: Annotated[Natural | None, Demand("control_sync_count", "vacuous_control_no_sync")] = None
    """The exact number of host syncs in one step."""
    at_most: Annotated[Natural | None, NoDemand("a control must have an exact count")] = None
    """Do not use this field in a control. A control needs `exactly`."""


class HostSyncs(Judged):
    """The candidate waits for the device as often as the claim allows. A control shows that waits are detected."""

    kind: Literal["host_syncs"]
    """Judges how often the host waits for the device in a step."""
    candidate: SyncCount
    """The candidate's arm, with the allowed number of host syncs."""
    control: SyncControl
    """An arm that waits for the device, with the exact number of host syncs. It proves that host syncs are detected."""
    reported: OptionalArm = None
    """An arm whose waits are reported but not judged, such as the plain step."""

    candidate_path: ClassVar[str] = "candidate.arm"
    # This claim has no baseline. Wherever the harness needs a baseline, it uses the control.
    baseline_path: ClassVar[str] = "control.arm"

    def sync_arms(self) -> set[str]:
        return {*self.arms().values()}

    def compared(self) -> list[list[str]]:
        return []  # no arms are compared, because the host syncs of each arm are counted separately

    def contradictions(self) -> Iterator[Problem]:
        if not self.control.exactly:
            rule = "the control must have at least one host sync: give it `exactly` with at least 1"
            got = "no `exactly`" if self.control.exactly is None else "0"
            yield Problem(("control",), rule, got, "name an arm that synchronizes")


SLICE = 4  # the blocks of a long run are divided into this number of parts; the first part is compared with the last
# Smallest number of blocks in a quarter. With fewer blocks the median has no interval of 99 % confidence.
FEWEST_BLOCKS = 8


class LongReplay(Judged):
    """Over many steps, the captured training equals the plain training in bits. Memory and step time do not grow.

    Each arm has its own process and makes blocks of `every` steps. The evidence has one row for each block. The row
    contains digests of the losses and batches of all steps in the block, so every step is compared.
    """

    kind: Literal["long_replay"]
    """Judges effects that only a long run shows: late differences, memory leaks, and steps that become slower."""
    candidate: ArmName
    """The captured arm."""
    baseline: ArmName
    """The plain arm."""
    steps: StepsCompared
    """Number of steps that must have been compared."""
    every: Annotated[
        int, Field(ge=1, le=1000), NoDemand("states how many steps share a row; every step is compared")
    ] = 100
    """Number of steps in a block. A block has one row in the evidence, and its steps are timed together."""
    after: Annotated[
        Count,
        NoDemand("the number of first blocks that are left out; the loader refuses a claim if no block follows them"),
    ] = 1
    """Number of first blocks that count as warm-up. They are left out when memory and time are judged."""
    distinct_batches: Annotated[Count | None, Demand("vacuous_batches_repeat"), Nothing(1), CountsSteps()] = None
    """Smallest number of different batches, by digest, in the whole run."""
    memory_growth_at_most_mib: Annotated[NonNegative | None, Demand("memory_grows")] = None
    """Largest allowed growth of allocated or reserved memory, in MiB. If not given, memory is not judged. Two growths
    are measured: from the end of the warm-up to the peak of all later blocks, and from a typical peak in their first
    half to the peak in the second half. The typical peak is the median of the peaks of groups of `after` blocks."""
    slowdown_at_most: Annotated[Positive | None, Demand("slows_down")] = None
    """Largest share by which a step of the old run may take longer than a step of a fresh run. The two runs take turns
    at the end. In older evidence, the last quarter of the blocks is compared with the first quarter. If this field is
    not given, time is not judged."""

    must_train_alike: ClassVar[bool] = True
    plain_path: ClassVar[str | None] = "baseline"

    def can_bite(self, path: str) -> bool:
        # A bound of 0 can make the claim fail, too, although Python treats 0 as false.
        return super().can_bite(path) or (path == "memory_growth_at_most_mib" and self.value_at(path) == 0.0)

    def captures_candidate(self) -> bool:
        return True

    def asks_the_device(self) -> bool:
        return self.memory_growth_at_most_mib is not None

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        blocks = steps // self.every
        if self.memory_growth_at_most_mib is not None and blocks <= self.after:
            rule = f"a block of {self.every} steps must follow after the first {counted(self.after, 'block')} (`after`)"
            yield ("after",), rule

    def undecidable(self) -> Iterator[Problem]:
        needed = SLICE * FEWEST_BLOCKS
        blocks = self.steps // self.every - self.after
        if self.slowdown_at_most is not None and blocks < needed:
            yield Problem(
                ("every",),
                f"{counted(blocks, 'block')} of {self.every} steps after the first {counted(self.after, 'block')} "
                f"cannot show whether steps become slower: at least {needed} are required",
            )

    def process_count(self) -> int:
        return len(self.arms())

    def arms_of(self, process: int) -> list[str]:
        return [[self.baseline, self.candidate][process]]
