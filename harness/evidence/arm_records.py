"""Records that a worker writes of one arm: how it began and ended, gradients, capture, host syncs, memory."""

from __future__ import annotations

from typing import Literal

from harness.evidence.base import Record, Scalar
from harness.numbers import Amount, Count


class ArmStart(Record):
    record: Literal["arm_start"] = "arm_start"
    arm: str
    replica: Count
    trainable_digest: str
    frozen_digest: str
    trainable_tensors: Count
    facts: dict[str, Scalar]  # layers, device, dtype, parameters, text digest, … as the system states them


class ArmEnd(Record):
    record: Literal["arm_end"] = "arm_end"
    arm: str
    replica: Count
    trainable_digest: str
    frozen_digest: str
    skipped_steps: Count
    steps_called: Count


class TensorReduction(Record):
    """A gradient reduced on the device. `max_abs_difference` is against the baseline arm, if there is one."""

    name: str
    digest: str
    elements: Count
    max_abs: Amount
    max_abs_difference: Amount | None = None
    baseline_digest: str | None = None
    baseline_max_abs: Amount | None = None


class GroupNorm(Record):
    """L2 norm of one clipping group: as the system reports it before clipping, as the harness measures it after."""

    group: str
    before: Amount
    after: Amount


class Gradients(Record):
    record: Literal["gradients"] = "gradients"
    arm: str
    replica: Count
    step: Count
    baseline: str | None
    tensors: list[TensorReduction]
    groups: list[GroupNorm]


class GraphNodes(Record):
    """Census of one captured graph. `kernels` counts launches by demangled-enough name."""

    label: str
    by_type: dict[str, Count]
    kernels: dict[str, Count]
    device_to_host_copies: Count
    clipped_tensors: Count | None = None  # read from the clip kernels' own arguments


class CaptureEvidence(Record):
    """What the system says of its capture, and what the harness saw."""

    record: Literal["capture"] = "capture"
    arm: str
    replica: Count
    mechanism: Literal["cuda_graph", "traced"] | None
    requested: bool
    captured: bool
    failure: str | None  # why not, in the system's words
    captures: Count
    warmup_steps: Count
    replays: Count  # as the system counts them
    uncaptured_steps: Count
    nodes: list[GraphNodes]
    recorded_operations: Count  # traced: ATen operations recorded
    fake_pass_clean: bool | None  # traced: the body ran under fake tensors without a host sync
    moved_buffers: list[str]  # static buffers whose address changed, by name
    static_buffers: Count
    observed_steps: Count  # steps that the harness watched
    observed_graph_launches: Count | None  # cudaGraphLaunch calls seen in them (profiler)
    observed_replayed_operations: Count | None  # traced: operations seen by a dispatch mode in them


class SyncPlace(Record):
    file: str
    line: Count
    operation: str
    count: Count


class DetectorReading(Record):
    """One detector's count of host syncs over `steps` steps, and whether it sees a planted sync."""

    detector: Literal["dispatch_mode", "fake_pass", "profiler", "sync_debug_mode"]
    steps: Count
    count: Count
    places: list[SyncPlace]
    sees_planted: bool


class HostSyncEvidence(Record):
    record: Literal["host_syncs"] = "host_syncs"
    arm: str
    replica: Count
    layers: Count
    replayed: bool  # the observed steps were replays of a capture
    readings: list[DetectorReading]


class MemorySample(Record):
    step: Count
    allocated_bytes: Count
    reserved_bytes: Count


class MemoryEvidence(Record):
    record: Literal["memory"] = "memory"
    arm: str
    replica: Count
    per: Literal["replay", "recapture"]
    samples: list[MemorySample]
