"""Evidence: what was seen in one run, and nothing decided.

One run directory entry (`evidence/<run id>/`) holds `run.json` (the Run), `records.jsonl` (these records, each
with its `record` tag, ending with `complete`), and `<arm>.<replica>.csv` (the series). Judges read `RunEvidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from harness.contract.schema import Arm, Workload
from harness.evidence.numbers import Real

if TYPE_CHECKING:  # commands that read no series start without numpy
    import numpy as np
    from numpy.typing import NDArray

Scalar = bool | int | Real | str
Probe = Literal["paired", "throughput", "recapture", "kernels", "prewarm", "kernel_match"]


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedArm(Record):
    """One arm to execute: its settings, its system, how often (replicas beyond the first measure noise)."""

    arm: Arm
    system: str
    replicas: int = 1
    observe_syncs: bool = False


class Run(Record):
    """One thing to execute in a fresh process. `arms` are executed in their order, baselines first."""

    id: str
    contract: str
    probe: Probe
    workload_name: str
    workload: Workload
    arms: dict[str, PlannedArm]
    baseline_of: dict[str, str] = {}  # candidate -> the baseline its gradients are compared with
    gradient_steps: list[int] = []
    gradient_arms: list[str] | None = None  # arms whose gradients some claim reads; None: all
    process: int = 0  # which of several equal processes (throughput)
    settings: dict[str, object] = {}  # the claim's numbers that the probe itself needs (blocks, operations, …)
    fault: str | None = None
    fault_arms: list[str] = []
    wall_limit_s: Real = 900.0
    heartbeat_s: Real = 120.0
    data: str | None = None
    model_directory: str | None = None


class Obstacle(Record):
    """Why a unit is NOT_RUN: a stable reason code, and a sentence that says what is missing."""

    reason: str
    message: str


class Unit(Record):
    """One planned verdict: (contract, claim, workload), and the runs whose evidence decides it."""

    contract: str
    claim: str
    workload: str
    runs: list[str] = []
    obstacle: Obstacle | None = None


# --- records a worker writes -----------------------------------------------------------------------------


class Phase(Record):
    """Where the worker is; the last one names the place of a death."""

    record: Literal["phase"] = "phase"
    name: str
    seconds: Real  # since the worker's start


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


class Block(Record):
    """One timed block: `steps` steps bounded by device synchronization and the host clock."""

    arm: str
    round: int
    position: int  # 0..3 in its ABBA round
    steps: int
    seconds: Real
    first_step: int
    processor_seconds: Real | None = None  # processor time of the whole process in the block
    began: Real | None = None  # seconds by the machine's monotonic clock


class TelemetrySample(Record):
    seconds: Real
    sm_clock_mhz: Real | None
    power_w: Real | None
    temperature_c: Real | None
    throttle_reasons: list[str]
    foreign_processes: int
    host_load_per_core: Real


class Telemetry(Record):
    record: Literal["telemetry"] = "telemetry"
    samples: list[TelemetrySample]
    began: Real | None = None  # when `seconds` was 0, by the clock of `Block.began`


class TimingEvidence(Record):
    """One process of a timing comparison. Losses and digests of the timed steps are in the arms' series."""

    record: Literal["timing"] = "timing"
    process: int
    candidate: str
    baseline: str
    blocks: list[Block]
    observed_steps: int
    observed_graph_launches: dict[str, int]  # by arm, in one untimed block
    observed_device_seconds: dict[str, Real] = {}  # by arm: kernel time a step in that block; empty without CUDA


class JitEvent(Record):
    """A compile, disk-cache hit or module load. `phase` is prewarm, upload or train."""

    key: str
    event: Literal["compile", "disk_hit", "load"]
    phase: str
    seconds: Real


class KernelRecord(Record):
    """One kernel of a run or a plan."""

    key: str
    name: str
    ptx_digest: str
    targets: list[str]  # every `.target` line's architecture; empty when there is none
    versions: list[str]
    entries: list[str]
    load_route: str | None = None
    shared_memory_bytes: int | None = None
    threads: int | None = None


class KernelsEvidence(Record):
    record: Literal["kernels"] = "kernels"
    arm: str
    device: str | None  # "sm_90", or None when there is no device
    device_readable: bool
    driver_ptx_version: str | None
    compiled_for: str | None  # the named target of an offline compile
    planned: list[KernelRecord]
    used: list[KernelRecord]


class PrewarmEvidence(Record):
    record: Literal["prewarm"] = "prewarm"
    arm: str
    events: list[JitEvent]
    phases: dict[str, Real]  # phase -> seconds since start when it began
    handles: dict[str, Real]  # library handle -> seconds since start when it came to be
    free_bytes_after_fill: int | None
    steps_after_fill: int
    failure: str | None = None  # the error of the step that failed once memory was full


class KernelCase(Record):
    """One comparison: kernel against naive and against fp64, relative to the reference's largest value."""

    operation: str
    dtype: str
    shape: str
    magnitude: Real
    error_vs_naive: Real
    error_vs_fp64: Real
    naive_error_vs_fp64: Real
    finite: bool
    unwritten: int  # poisoned elements left in the outputs
    repeat_equal: bool


class KernelMatchEvidence(Record):
    record: Literal["kernel_match"] = "kernel_match"
    arm: str
    cases: list[KernelCase]
    compiled: list[KernelRecord]
    constants: dict[str, int]  # tile, unroll, … as the source's constants say


class Unavailable(Record):
    """The machine or system cannot do what the run asks (`NotAvailable` was raised): its units are NOT_RUN."""

    record: Literal["unavailable"] = "unavailable"
    obstacle: Obstacle


class Raised(Record):
    """An exception that ended the worker, as the worker itself saw it."""

    record: Literal["raised"] = "raised"
    error: str  # type and message
    stack: str


class Complete(Record):
    """The last record of a worker that did all it was asked."""

    record: Literal["complete"] = "complete"
    seconds: Real


AnyRecord = Annotated[
    Phase
    | ArmStart
    | ArmEnd
    | Gradients
    | CaptureEvidence
    | HostSyncEvidence
    | MemoryEvidence
    | TimingEvidence
    | Telemetry
    | KernelsEvidence
    | PrewarmEvidence
    | KernelMatchEvidence
    | Unavailable
    | Raised
    | Complete,
    Field(discriminator="record"),
]
RECORD = TypeAdapter[AnyRecord](AnyRecord)


class Death(Record):
    """How a worker ended when it did not complete, as the supervisor saw it."""

    cause: Literal[
        "signal", "exit_code", "wall_limit", "heartbeat", "incomplete", "garbage", "output_limit", "exception"
    ]
    detail: str  # signal name, exit code, limit, exception type and message
    phase: str | None
    stack: str  # last Python stack, may be empty


# --- what a judge reads ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """What one arm's steps gave, step by step. Arrays of one length."""

    loss: NDArray[np.float64]
    batch_digest: Sequence[str]
    clip_active_groups: NDArray[np.int64]  # groups whose norm exceeded the threshold; -1: not reported
    tokens: NDArray[np.int64]


@dataclass(frozen=True)
class ArmEvidence:
    """Everything seen of one execution of one arm; None where the probe did not look."""

    start: ArmStart
    end: ArmEnd | None
    series: Series
    gradients: list[Gradients] = field(default_factory=list)
    capture: CaptureEvidence | None = None
    syncs: HostSyncEvidence | None = None
    memory: list[MemoryEvidence] = field(default_factory=list)


@dataclass(frozen=True)
class RunEvidence:
    """One run, as judges see it. They never see the fault's name."""

    run_id: str
    probe: Probe
    arms: dict[str, list[ArmEvidence]]  # by arm, one entry a replica
    timing: TimingEvidence | None = None
    telemetry: Telemetry | None = None
    kernels: dict[str, KernelsEvidence] = field(default_factory=dict)
    prewarm: dict[str, PrewarmEvidence] = field(default_factory=dict)
    kernel_match: dict[str, KernelMatchEvidence] = field(default_factory=dict)
    death: Death | None = None
    obstacle: Obstacle | None = None  # the worker found that this machine cannot do it: NOT_RUN
