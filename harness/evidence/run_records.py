"""Define the records that a worker writes of its whole run: phases, timings, telemetry, kernels, one observed step."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.evidence.base import ArmRecord, Cause, Obstacle, Record, RunRecord
from harness.numbers import Amount, Count, Real

Part = str  # the field of `ArmEvidence` that a detector or recorder fills; of a package's record type its `record`
# Times the least of the same machine. On an H200's host (20 processes, 320 blocks) a pace was either within 1.35 times
# the least, or 1.5 to 2 times it, six between: that is what two busy threads of one core leave each other.
DISTURBED = 1.35
TIMED_PHASE = "timed"  # a throughput probe enters it with its first timed block; telemetry is kept from it


class Phase(Record):
    """Where the worker is; the last one names the place of a death."""

    record: Literal["phase"] = "phase"
    name: str
    seconds: Amount  # since the worker's start
    began: Real | None = None  # by the clock of `Block.began`


class Block(Record):
    """One timed block: `steps` steps bounded by device synchronization and the host clock."""

    arm: str
    round: Count
    position: Count  # 0..3 in its ABBA round
    steps: Count
    seconds: Amount
    first_step: Count
    processor_seconds: Amount | None = None  # processor time of the whole process in the block
    began: Real | None = None  # seconds by the machine's monotonic clock
    graph_launches: Count | None = None  # in its steps, by the harness's own callback; None: not counted
    enqueue_seconds: Amount | None = None  # until its first step returned, with nothing before it on the device
    # processor seconds of a fixed piece of work, the longer of before and after; None: not known
    pace: Amount | None = None
    # processor seconds of threads and child processes that the arm began, since its block before ended; None: unknown
    untimed_helper_seconds: Amount | None = None


class TelemetrySample(Record):
    seconds: Amount
    sm_clock_mhz: Amount | None
    power_w: Amount | None
    temperature_c: Real | None
    throttle_reasons: list[str]
    foreign_processes: int
    host_load_per_core: Amount


class Telemetry(RunRecord):
    record: Literal["telemetry"] = "telemetry"
    samples: list[TelemetrySample]
    began: Real | None = None  # when `seconds` was 0, by the clock of `Block.began`
    timed_seconds: Amount | None = None  # how long the timed phase took, by the supervisor's own clock


class TimingEvidence(RunRecord):
    """One process of a timing comparison. Losses and digests of the timed steps are in the arms' series."""

    record: Literal["timing"] = "timing"
    process: Count
    candidate: str
    baseline: str
    blocks: list[Block]
    observed_steps: Count  # of an untimed block; 0: this process counted its timed launches instead
    observed_graph_launches: dict[str, Count]  # by arm, in that block
    # by arm: kernel time a step in that block; empty without CUDA
    observed_device_seconds: dict[str, Amount] = Field(default_factory=dict)
    processors: Count | None = None  # that this process may use
    # a sync planted after that block; None: no profiler, or recorded before it was shown one
    profiler_sees_planted: bool | None = None
    counter_sees_planted: bool | None = None  # a launch planted before the timed blocks and after; None: no counter
    own_processes: bool = False  # each arm in a process of its own, because they are of two commits
    counter_failure: str | None = None  # why launches could not be counted, or not reliably


class JitEvent(Record):
    """A compile, disk-cache hit or module load. `phase` is prewarm, upload or train."""

    key: str
    event: Literal["compile", "disk_hit", "load"]
    phase: str
    seconds: Amount


class KernelRecord(Record):
    """One kernel of a run or a plan."""

    key: str
    name: str
    ptx_digest: str
    targets: list[str]  # every `.target` line's architecture; empty when there is none
    versions: list[str]
    entries: list[str]
    load_route: str | None = None
    shared_memory_bytes: Count | None = None
    threads: Count | None = None


class KernelsEvidence(RunRecord):
    record: Literal["kernels"] = "kernels"
    key: ClassVar = ("arm",)
    arm: str
    device: str | None  # "sm_90", or None when there is no device
    device_readable: bool
    driver_ptx_version: str | None
    compiled_for: str | None  # the named target of an offline compile
    planned: list[KernelRecord]
    used: list[KernelRecord]


class PrewarmEvidence(RunRecord):
    record: Literal["prewarm"] = "prewarm"
    key: ClassVar = ("arm",)
    arm: str
    events: list[JitEvent]
    phases: dict[str, Amount]  # phase -> seconds since start when it began
    handles: dict[str, Amount]  # library handle -> seconds since start when it came to be
    free_bytes_after_fill: Count | None
    steps_after_fill: Count
    failure: str | None = None  # the error of the step that failed once memory was full


class KernelErrors(Record):
    """Largest errors over all elements of several outputs, each element's relative to the sum of its terms' sizes."""

    vs_naive: Amount
    vs_fp64: Amount
    naive_vs_fp64: Amount


class PeerErrors(Record):
    """Largest errors against fp64 of a peer, and of the kernel over the outputs that the peer has, too."""

    vs_fp64: Amount
    own_vs_fp64: Amount


class KernelPeer(Record):
    """Another project's kernel next to ours: errors by the data type of our outputs, relative as the case's are."""

    name: str
    outputs: list[str]
    errors: dict[str, PeerErrors]


class KernelCase(Record):
    """One comparison: kernel against naive and against fp64, relative to the reference's largest value."""

    operation: str
    dtype: str
    shape: str
    magnitude: Amount
    error_vs_naive: Amount
    error_vs_fp64: Amount
    naive_error_vs_fp64: Amount
    finite: bool
    unwritten: Count  # poisoned elements left in the outputs
    repeat_equal: bool
    mistyped: list[str] = Field(default_factory=list)  # outputs of another type or shape than declared, and of which
    # None in evidence of an older harness
    overwritten: Count | None = None  # elements changed besides the outputs, within the guards around them
    zero_references: Count | None = None  # outputs whose reference is zero in every element
    outputs: dict[str, str] | None = None  # data type of each
    terms: dict[str, KernelErrors] | None = None  # by the data type of the outputs
    peer: KernelPeer | None = None


class KernelMatchEvidence(RunRecord):
    record: Literal["kernel_match"] = "kernel_match"
    key: ClassVar = ("arm",)
    arm: str
    cases: list[KernelCase]
    compiled: list[KernelRecord]
    constants: dict[str, Count]  # tile, unroll, … as the source's constants say


class TensorErrors(Record):
    """L2 norms of one trained tensor's gradient: the reference's own, and of two arms' differences from it."""

    name: str
    reference_norm: Amount
    candidate_error: Amount
    peer_error: Amount


class StepErrors(RunRecord):
    """Gradients of one step of the candidate, and those of two other arms at its parameters and on its batch."""

    record: Literal["step_errors"] = "step_errors"
    key: ClassVar = ("seed", "step")
    seed: Count
    step: Count
    parameters: dict[str, str]  # digest, in float32, of what the step began with, by arm
    batches: dict[str, str]  # digest of what it read, by arm
    losses: dict[str, Real]  # by arm
    tensors: list[TensorErrors]


class Unavailable(Record):
    """The machine or system cannot do what the run asks (`NotAvailable` was raised): its units are NOT_RUN."""

    record: Literal["unavailable"] = "unavailable"
    obstacle: Obstacle


class ArmFailed(RunRecord):
    """One arm came to no end; the others of its run are evidence all the same. It costs the claims that name it."""

    record: Literal["arm_failed"] = "arm_failed"
    key: ClassVar = ("arm",)
    arm: str
    cause: Cause
    detail: str  # exception type and message, signal, exit code, limit
    phase: str | None
    stack: str
    obstacle: Obstacle | None = None  # the arm's system said what this machine lacks: NOT_RUN
    steps: int | None = None  # that it made before; None: not recorded


class PartFailed(ArmRecord):
    """A detector or recorder of one execution raised. It costs the claims that read this part of the evidence."""

    record: Literal["part_failed"] = "part_failed"
    key: ClassVar = ("arm", "replica", "part")
    part: Part
    cause: Cause = "exception"
    detail: str  # exception type and message
    phase: str | None
    stack: str
    obstacle: Obstacle | None = None  # the system said what this machine lacks: NOT_RUN


class Raised(Record):
    """An exception that ended the worker, as the worker itself saw it."""

    record: Literal["raised"] = "raised"
    error: str  # type and message
    stack: str
    cause: Cause = "exception"  # of a rank's end, by the process that watches the ranks


class Complete(Record):
    """The last record of a worker that did all it was asked."""

    record: Literal["complete"] = "complete"
    seconds: Amount
    processor_seconds: Amount | None = None  # of the process, and of its children that ended


def disturbed(pace: float, least: float) -> bool:
    """Return True if a pace is disturbed, compared with the least pace of its machine, or is not a number."""
    return not pace <= DISTURBED * least


GRADIENT = "gradient"  # begins the name of a gradient, as a category begins that of state

UNOBSERVED, OBSERVED = 0, 1  # executions of an arm


class ReadTensor(Record):
    """A tensor that an operator reads. Digests are of bits; None where they could not be read, or were never written.

    source: the operator of this step that wrote its memory last. name: of the state or input that it is, if it has one.
    """

    digest: str | None
    form: str  # data type and shape
    source: Count | None = None
    name: str | None = None
    number: str | None = None  # its value, if the host holds it as one number


class ObservedOperator(Record):
    """One operator. `line` and `module` are empty where nothing of the user's called it."""

    name: str
    phase: Literal["between", "forward", "backward"]
    module: str
    line: str
    code: str
    arguments: list[str]  # with a point for each tensor
    reads: list[ReadTensor]
    makes: list[str | None]  # digests of what it returns
    leaves: list[str | None]  # digests of what it was given and changed; None for the rest
    writes: list[str] = Field(default_factory=list)  # names of the state that it changes
    replayed: bool = False
    captured_as: Count | None = None  # its number among the operators of its graph
    values: list[list[float]] | None = None  # of what it makes, where that was asked for


class ObservedStep(RunRecord):
    """One step of one execution of an arm: digests by what they are of, and the operators if they were observed.

    unseen: kernels in replayed graphs that belong to no operator, and graphs without one. seconds: from the opening of
    the arm to the end of the step. bytes: of the digests that observing it kept.
    """

    record: Literal["observed_step"] = "observed_step"
    key: ClassVar = ("arm", "replica", "step")
    arm: str
    replica: Count
    step: Count
    before: dict[str, str]  # state, by `category name`
    batch: dict[str, str]
    loss: str
    gradients: dict[str, str]
    after: dict[str, str]
    operators: list[ObservedOperator] | None = None
    unseen: Count = 0
    seconds: Amount | None = None
    bytes: Count | None = None

    @model_validator(mode="after")
    def _made_before(self) -> Self:
        """Refuse a tensor that is read before the operator that made it: following sources then comes to an end."""
        for number, operator in enumerate(self.operators or []):
            if any(read.source is not None and read.source >= number for read in operator.reads):
                raise ValueError(f"operator {number} reads what a later one made")
        return self
