"""Define the records that a worker writes about its whole run: phases, timings, telemetry, kernels, observed steps."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.evidence.base import ArmRecord, Cause, Obstacle, Record, RunRecord
from harness.numbers import Amount, Count, Real

# A part of the evidence: the field of `ArmEvidence` that a detector or recorder fills, or the `record` value of a
# package's record type.
Part = str
# A block counts as disturbed if its pace exceeds this multiple of the smallest pace on the machine. The pace is the
# time of a fixed piece of work. In 320 blocks of 20 processes on the machine of an H200, all paces except six were at
# most 1.35 times the smallest pace, or 1.5 to 2 times as large. A second thread on the same core causes the larger
# values.
DISTURBED = 1.35
# Name of the phase that begins with a process's first timed block. Telemetry is kept from then on.
TIMED_PHASE = "timed"


class Phase(Record):
    """The beginning of a phase of the worker. The last recorded phase shows where a worker died."""

    record: Literal["phase"] = "phase"
    name: str
    seconds: Amount  # seconds from the start of the worker to the start of the phase
    began: Real | None = None  # time at which the phase began, on the same clock as `Block.began`


class Block(Record):
    """One timed block of `steps` steps. The host's clock is read at the start and the end of the block, each time after
    the device has finished all work."""

    arm: str
    round: Count
    position: Count  # position of the block in its round of four blocks (arms in the order A, B, B, A), 0 to 3
    steps: Count
    seconds: Amount
    first_step: Count
    processor_seconds: Amount | None = None  # processor time, in seconds, of the whole process during the block
    began: Real | None = None  # time at which the block began, in seconds on the machine's monotonic clock
    # number of graph launches in the block's steps, counted by the harness's callback; None: not counted
    graph_launches: Count | None = None
    # Seconds from the start of the block until the call of its first step returned. The device was idle at the start,
    # so the step did not wait for the device.
    enqueue_seconds: Amount | None = None
    # Processor seconds of a fixed piece of work: the larger of the values before and after the block. None: unknown.
    pace: Amount | None = None
    # Processor seconds that the arm's threads and child processes used between its previous block and this block. None:
    # unknown.
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
    began: Real | None = None  # the time at which `seconds` was 0, on the same clock as `Block.began`
    # seconds of the timed phase, on the clock of the process that started the worker
    timed_seconds: Amount | None = None


class TimingEvidence(RunRecord):
    """The timed blocks of one process. Losses and digests of the timed steps are in the series of the arms."""

    record: Literal["timing"] = "timing"
    process: Count
    candidate: str
    baseline: str
    blocks: list[Block]
    # number of steps in an additional block that was observed and not timed; 0: launches were counted in the timed
    # blocks
    observed_steps: Count
    observed_graph_launches: dict[str, Count]  # name of an arm -> number of its graph launches in the additional block
    # Name of an arm -> seconds of its kernels per step in the additional block. Empty without CUDA.
    observed_device_seconds: dict[str, Amount] = Field(default_factory=dict)
    processors: Count | None = None  # number of processors that this process may use
    # True: the profiler recorded the host sync that the harness planted after the additional block. None: no profiler,
    # or evidence of an older version.
    profiler_sees_planted: bool | None = None
    # True: the counter also counted the graph launches that the harness planted before and after the timed blocks.
    # None: no counter.
    counter_sees_planted: bool | None = None
    own_processes: bool = False  # True: each arm ran in its own process, because the arms use two commits
    counter_failure: str | None = None  # the reason why graph launches could not be counted reliably


class JitEvent(Record):
    """One compilation of a kernel, one disk-cache hit, or one load of a module. phase: prewarm, upload or train."""

    key: str
    event: Literal["compile", "disk_hit", "load"]
    phase: str
    seconds: Amount


class KernelRecord(Record):
    """One kernel that a run used, or that was planned for the run."""

    key: str
    name: str
    ptx_digest: str
    targets: list[str]  # the architectures in the `.target` lines of the PTX text; empty: there is no such line
    versions: list[str]
    entries: list[str]
    load_route: str | None = None
    shared_memory_bytes: Count | None = None
    threads: Count | None = None


class KernelsEvidence(RunRecord):
    record: Literal["kernels"] = "kernels"
    key: ClassVar = ("arm",)
    arm: str
    device: str | None  # the device's architecture, such as "sm_90"; None: no device
    device_readable: bool
    driver_ptx_version: str | None
    compiled_for: str | None  # the target for which kernels were compiled without a device
    planned: list[KernelRecord]
    used: list[KernelRecord]


class PrewarmEvidence(RunRecord):
    record: Literal["prewarm"] = "prewarm"
    key: ClassVar = ("arm",)
    arm: str
    events: list[JitEvent]
    phases: dict[str, Amount]  # name of a phase -> seconds from the process's start to the beginning of the phase
    # name of a library handle -> seconds from the process's start to the creation of the handle
    handles: dict[str, Amount]
    free_bytes_after_fill: Count | None
    steps_after_fill: Count
    failure: str | None = None  # the error of the step that failed after the memory was filled


class KernelErrors(Record):
    """The largest errors of output elements. An element is a sum of terms, for example a dot product. Each error is
    divided by the sum of the absolute values of these terms."""

    vs_naive: Amount
    vs_fp64: Amount
    naive_vs_fp64: Amount


class PeerErrors(Record):
    """The largest errors of a peer's kernel and of our kernel, each compared with fp64. Only the outputs that the
    peer's kernel also has are compared."""

    vs_fp64: Amount
    own_vs_fp64: Amount


class KernelPeer(Record):
    """The kernel of another project (a peer) for the same operation. errors: the largest errors, by data type of our
    outputs. Each error is divided as in `KernelErrors`."""

    name: str
    outputs: list[str]
    errors: dict[str, PeerErrors]


class KernelCase(Record):
    """One comparison of a kernel with its naive version and with a reference in fp64. Errors are divided by the
    reference's largest value."""

    operation: str
    dtype: str
    shape: str
    magnitude: Amount
    error_vs_naive: Amount
    error_vs_fp64: Amount
    naive_error_vs_fp64: Amount
    finite: bool
    # number of output elements that the kernel did not write: they still have the value with which the harness filled
    # them
    unwritten: Count
    repeat_equal: bool
    # outputs that do not have the declared type or shape, each with the type and shape that it has
    mistyped: list[str] = Field(default_factory=list)
    # The following fields are None in older evidence.
    # number of elements that the kernel changed in the guard areas, which are memory before and after the outputs
    overwritten: Count | None = None
    zero_references: Count | None = None  # number of outputs for which all elements of the reference are zero
    outputs: dict[str, str] | None = None  # name of each output -> its data type
    # data type of the outputs -> the kernel's errors, divided as in `KernelErrors`
    terms: dict[str, KernelErrors] | None = None
    peer: KernelPeer | None = None


class KernelMatchEvidence(RunRecord):
    record: Literal["kernel_match"] = "kernel_match"
    key: ClassVar = ("arm",)
    arm: str
    cases: list[KernelCase]
    compiled: list[KernelRecord]
    constants: dict[str, Count]  # names and values of constants in the source of the kernel, such as tile and unroll


class TensorErrors(Record):
    """L2 norms for one trained tensor: of the reference's gradient, and of its differences from the candidate's and the
    peer's gradients."""

    name: str
    reference_norm: Amount
    candidate_error: Amount
    peer_error: Amount


class StepErrors(RunRecord):
    """The errors of a candidate's and a peer's gradients in one step. The reference has equal parameters and batch."""

    record: Literal["step_errors"] = "step_errors"
    key: ClassVar = ("seed", "step")
    seed: Count
    step: Count
    # name of an arm -> digest of its parameters, converted to float32, at the start of the step
    parameters: dict[str, str]
    batches: dict[str, str]  # name of an arm -> digest of its batch
    losses: dict[str, Real]  # name of an arm -> its loss
    tensors: list[TensorErrors]


class Unavailable(Record):
    """The machine or the system lacks something that the run requires (`NotAvailable` was raised). The units that this
    run decides are NOT_RUN."""

    record: Literal["unavailable"] = "unavailable"
    obstacle: Obstacle


class ArmFailed(RunRecord):
    """One arm ended early. Claims that name this arm cannot be judged. The evidence of the other arms stays valid."""

    record: Literal["arm_failed"] = "arm_failed"
    key: ClassVar = ("arm",)
    arm: str
    cause: Cause
    detail: str  # what ended the arm: type and message of an exception, a signal, an exit code, or a limit
    phase: str | None
    stack: str
    # what this machine lacks, as the arm's system reported it; None: the arm failed for another reason
    obstacle: Obstacle | None = None
    steps: int | None = None  # number of steps that the arm made before it ended; None: not recorded


class PartFailed(ArmRecord):
    """A detector or recorder raised an error in one execution of an arm. Claims that need `part` cannot be judged."""

    record: Literal["part_failed"] = "part_failed"
    key: ClassVar = ("arm", "replica", "part")
    part: Part
    cause: Cause = "exception"
    detail: str  # type and message of the exception
    phase: str | None
    stack: str
    # what this machine lacks, as the system reported it; None: the part failed for another reason
    obstacle: Obstacle | None = None


class Raised(Record):
    """An exception that ended the worker, recorded by the worker itself."""

    record: Literal["raised"] = "raised"
    error: str  # type and message of the exception
    stack: str
    # Any other value means that a rank's process ended, and that the process which watches the ranks recorded this end.
    cause: Cause = "exception"


class Complete(Record):
    """The last record of a worker that completed its run."""

    record: Literal["complete"] = "complete"
    seconds: Amount
    # processor seconds of this process, and of its child processes that have ended
    processor_seconds: Amount | None = None


def disturbed(pace: float, least: float) -> bool:
    """Return True if a pace (seconds of a fixed piece of work) exceeds `DISTURBED` times the smallest pace, `least`, or
    is not a number."""
    return not pace <= DISTURBED * least


# The first word in the name of each gradient. In the name of a tensor of the state, the first word is its category.
GRADIENT = "gradient"

# numbers of two executions of an arm: one without observation, one in which each operator is recorded
UNOBSERVED, OBSERVED = 0, 1


class ReadTensor(Record):
    """A tensor that an operator reads.

    digest: of the tensor's bits; None if the bits could not be read or were never written. source: number of the
    operator of this step that wrote the tensor's memory last. name: the tensor's name in the state or the inputs, if it
    has one.
    """

    digest: str | None
    form: str  # data type and shape of the tensor
    source: Count | None = None
    name: str | None = None
    number: str | None = None  # the value of the tensor, if the tensor is a single number on the host


class ObservedOperator(Record):
    """One operator of a step. `line` and `module` are empty if user code did not call the operator."""

    name: str
    phase: Literal["between", "forward", "backward"]
    module: str
    line: str
    code: str
    arguments: list[str]  # the arguments as text, with `·` in place of each tensor
    reads: list[ReadTensor]
    makes: list[str | None]  # digests of the tensors that the operator returns
    # digest of each input after the operator, if the operator changed the input; otherwise None
    leaves: list[str | None]
    writes: list[str] = Field(default_factory=list)  # names of the tensors of the state that the operator changes
    replayed: bool = False
    captured_as: Count | None = None  # index of the operator among the operators of the graph that contains it
    values: list[list[float]] | None = None  # values of the tensors that the operator returns; None: not requested


class ObservedStep(RunRecord):
    """One step of one execution of an arm: digests of tensors by name, and the step's operators if they were recorded.

    unseen: number of captured kernels that belong to no recorded operator, plus number of replays of graphs whose
    operators were not recorded. seconds: from the opening of the arm to the end of the step. bytes: size of the digests
    that were kept during the recording.
    """

    record: Literal["observed_step"] = "observed_step"
    key: ClassVar = ("arm", "replica", "step")
    arm: str
    replica: Count
    step: Count
    before: dict[str, str]  # state before the step: `category name` -> digest
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
        """Raise ValueError for a tensor whose source is not an earlier operator. Otherwise code that goes from source
        to source might never end."""
        for number, operator in enumerate(self.operators or []):
            if any(read.source is not None and read.source >= number for read in operator.reads):
                raise ValueError(f"operator {number} of the recording reads the result of a later operator")
        return self
