"""Records that a worker writes of one arm: how it began and ended, gradients, capture, host syncs, memory."""

from __future__ import annotations

from typing import Literal

from harness.evidence.base import Record, Scalar
from harness.evidence.numbers import Real


class ArmStart(Record):
    record: Literal["arm_start"] = "arm_start"
    arm: str
    replica: int
    trainable_digest: str
    frozen_digest: str
    trainable_tensors: int
    facts: dict[str, Scalar]  # layers, device, dtype, parameters, text digest, … as the system states them


class ArmEnd(Record):
    record: Literal["arm_end"] = "arm_end"
    arm: str
    replica: int
    trainable_digest: str
    frozen_digest: str
    skipped_steps: int
    steps_called: int


class TensorReduction(Record):
    """A gradient reduced on the device. `max_abs_difference` is against the baseline arm, if there is one."""

    name: str
    digest: str
    elements: int
    max_abs: Real
    max_abs_difference: Real | None = None
    baseline_digest: str | None = None
    baseline_max_abs: Real | None = None


class GroupNorm(Record):
    """L2 norm of one clipping group: as the system reports it before clipping, as the harness measures it after."""

    group: str
    before: Real
    after: Real


class Gradients(Record):
    record: Literal["gradients"] = "gradients"
    arm: str
    replica: int
    step: int
    baseline: str | None
    tensors: list[TensorReduction]
    groups: list[GroupNorm]


class GraphNodes(Record):
    """Census of one captured graph. `kernels` counts launches by demangled-enough name."""

    label: str
    by_type: dict[str, int]
    kernels: dict[str, int]
    device_to_host_copies: int
    clipped_tensors: int | None = None  # read from the clip kernels' own arguments


class CaptureEvidence(Record):
    """What the system says of its capture, and what the harness saw."""

    record: Literal["capture"] = "capture"
    arm: str
    replica: int
    mechanism: Literal["cuda_graph", "traced"] | None
    requested: bool
    captured: bool
    failure: str | None  # why not, in the system's words
    captures: int
    warmup_steps: int
    replays: int  # as the system counts them
    uncaptured_steps: int
    nodes: list[GraphNodes]
    recorded_operations: int  # traced: ATen operations recorded
    fake_pass_clean: bool | None  # traced: the body ran under fake tensors without a host sync
    moved_buffers: list[str]  # static buffers whose address changed, by name
    static_buffers: int
    observed_steps: int  # steps that the harness watched
    observed_graph_launches: int | None  # cudaGraphLaunch calls seen in them (profiler)
    observed_replayed_operations: int | None  # traced: operations seen by a dispatch mode in them


class SyncPlace(Record):
    file: str
    line: int
    operation: str
    count: int


class DetectorReading(Record):
    """One detector's count of host syncs over `steps` steps, and whether it sees a planted sync."""

    detector: Literal["dispatch_mode", "fake_pass", "profiler", "sync_debug_mode"]
    steps: int
    count: int
    places: list[SyncPlace]
    sees_planted: bool


class HostSyncEvidence(Record):
    record: Literal["host_syncs"] = "host_syncs"
    arm: str
    replica: int
    layers: int
    replayed: bool  # the observed steps were replays of a capture
    readings: list[DetectorReading]


class MemorySample(Record):
    step: int
    allocated_bytes: int
    reserved_bytes: int


class MemoryEvidence(Record):
    record: Literal["memory"] = "memory"
    arm: str
    replica: int
    per: Literal["replay", "recapture"]
    samples: list[MemorySample]
