"""Define the records that a worker writes about its whole run: phases, timings, telemetry, kernels, observed steps."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.evidence.base import ArmRecord, Cause, Obstacle, Record, RunRecord
from harness.numbers import Amount, Count, Real

Part = str  # the field of `ArmEvidence` that a detector or recorder fills, or the `record` of a package's record type
# A block is disturbed if its pace exceeds this multiple of the machine's least pace. In 320 blocks of 20 processes on
# an H200's host, all but six paces were up to 1.35 times the least pace, or 1.5 to 2 times it (a core's second thread).
DISTURBED = 1.35
TIMED_PHASE = "timed"  # a throughput probe enters this phase with its first timed block; telemetry is kept from then on


class Phase(Record):
    """The beginning of a phase of the worker. The last recorded phase shows where a worker died."""

    record: Literal["phase"] = "phase"
    name: str
    seconds: Amount  # since the worker's start
    began: Real | None = None  # on the clock of `Block.began`


class Block(Record):
    """One timed block of `steps` steps. The host clock is read at both ends, after the device has finished."""

    arm: str
    round: Count
    position: Count  # 0..3 in its ABBA round
    steps: Count
    seconds: Amount
    first_step: Count
    processor_seconds: Amount | None = None  # processor time of the whole process in the block
    began: Real | None = None  # seconds on the machine's monotonic clock
    graph_launches: Count | None = None  # in its steps, counted by the harness's callback; None: not counted
    enqueue_seconds: Amount | None = None  # until the first step returned; the device was idle before
    # processor seconds of a fixed piece of work, the larger of before and after the block; None: not known
    pace: Amount | None = None
    # processor seconds, since the arm's previous block, of threads and child processes that it started; None: unknown
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
    began: Real | None = None  # when `seconds` was 0, on the clock of `Block.began`
    timed_seconds: Amount | None = None  # duration of the timed phase, on the supervisor's clock


class TimingEvidence(RunRecord):
    """What one process of a timing comparison measured. Losses and digests of timed steps are in the arms' series."""

    record: Literal["timing"] = "timing"
    process: Count
    candidate: str
    baseline: str
    blocks: list[Block]
    observed_steps: Count  # steps of an untimed, observed block; 0: launches were counted in the timed blocks
    observed_graph_launches: dict[str, Count]  # by arm, in the observed block
    # by arm: kernel time per step in the observed block; empty without CUDA
    observed_device_seconds: dict[str, Amount] = Field(default_factory=dict)
    processors: Count | None = None  # processors that this process may use
    # the profiler saw a host sync planted after the observed block; None: no profiler, or older evidence
    profiler_sees_planted: bool | None = None
    counter_sees_planted: bool | None = None  # of launches planted before and after the timed blocks; None: no counter
    own_processes: bool = False  # each arm ran in its own process, because the arms are of two commits
    counter_failure: str | None = None  # why launches could not be counted reliably


class JitEvent(Record):
    """One compile, disk-cache hit or module load of a kernel. phase: prewarm, upload or train."""

    key: str
    event: Literal["compile", "disk_hit", "load"]
    phase: str
    seconds: Amount


class KernelRecord(Record):
    """One kernel that a run or a plan uses."""

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
    phases: dict[str, Amount]  # phase -> its beginning, in seconds since the start
    handles: dict[str, Amount]  # library handle -> its creation, in seconds since the start
    free_bytes_after_fill: Count | None
    steps_after_fill: Count
    failure: str | None = None  # the error of a step that failed after memory was filled


class KernelErrors(Record):
    """Largest errors over all elements of several outputs, each divided by the sum of its terms' absolute values."""

    vs_naive: Amount
    vs_fp64: Amount
    naive_vs_fp64: Amount


class PeerErrors(Record):
    """Largest errors against fp64: of a peer's outputs, and of our kernel in the outputs that the peer has too."""

    vs_fp64: Amount
    own_vs_fp64: Amount


class KernelPeer(Record):
    """Another project's kernel. errors: by data type of our outputs, relative as in `KernelCase.terms`."""

    name: str
    outputs: list[str]
    errors: dict[str, PeerErrors]


class KernelCase(Record):
    """One comparison of a kernel with naive code and with fp64, relative to the reference's largest value."""

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
    mistyped: list[str] = Field(default_factory=list)  # outputs whose type or shape is not as declared, with that type
    # The following fields are None in older evidence.
    overwritten: Count | None = None  # changed elements of the guard areas around the outputs
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
    constants: dict[str, Count]  # constants in the kernel's source: tile, unroll, …


class TensorErrors(Record):
    """L2 norms for one trained tensor: of the reference's gradient, and of two arms' differences from this gradient."""

    name: str
    reference_norm: Amount
    candidate_error: Amount
    peer_error: Amount


class StepErrors(RunRecord):
    """Gradient errors of one step of the candidate, and of two other arms with the candidate's parameters and batch."""

    record: Literal["step_errors"] = "step_errors"
    key: ClassVar = ("seed", "step")
    seed: Count
    step: Count
    parameters: dict[str, str]  # digest of the parameters, in float32, at the start of the step, by arm
    batches: dict[str, str]  # digest of the batch, by arm
    losses: dict[str, Real]  # by arm
    tensors: list[TensorErrors]


class Unavailable(Record):
    """The machine or system cannot do what the run requires (`NotAvailable` was raised): its units are NOT_RUN."""

    record: Literal["unavailable"] = "unavailable"
    obstacle: Obstacle


class ArmFailed(RunRecord):
    """One arm ended early. Claims that name this arm cannot be judged. The run's other arms are still evidence."""

    record: Literal["arm_failed"] = "arm_failed"
    key: ClassVar = ("arm",)
    arm: str
    cause: Cause
    detail: str  # exception type and message, signal, exit code, limit
    phase: str | None
    stack: str
    obstacle: Obstacle | None = None  # what this machine lacks, as reported by the arm's system: NOT_RUN
    steps: int | None = None  # steps that the arm made before its end; None: not recorded


class PartFailed(ArmRecord):
    """A detector or recorder of one execution raised. Claims that read its part of the evidence cannot be judged."""

    record: Literal["part_failed"] = "part_failed"
    key: ClassVar = ("arm", "replica", "part")
    part: Part
    cause: Cause = "exception"
    detail: str  # exception type and message
    phase: str | None
    stack: str
    obstacle: Obstacle | None = None  # what this machine lacks, as reported by the system: NOT_RUN


class Raised(Record):
    """An exception that ended the worker, as recorded by the worker itself."""

    record: Literal["raised"] = "raised"
    error: str  # type and message
    stack: str
    cause: Cause = "exception"  # another cause if a rank ended, as seen by the process that watches the ranks


class Complete(Record):
    """The last record of a worker that completed its run."""

    record: Literal["complete"] = "complete"
    seconds: Amount
    processor_seconds: Amount | None = None  # of the process and of its ended child processes


def disturbed(pace: float, least: float) -> bool:
    """Return True if a pace exceeds `DISTURBED` times the machine's least pace, or is not a number."""
    return not pace <= DISTURBED * least


GRADIENT = "gradient"  # first word of a gradient's name, as a category is the first word of the name of state

UNOBSERVED, OBSERVED = 0, 1  # executions of an arm


class ReadTensor(Record):
    """A tensor that an operator reads. digest: of the tensor's bits; None if they were unreadable or never written.

    source: number of the operator of this step that last wrote its memory. name: its name as state or input, if any.
    """

    digest: str | None
    form: str  # data type and shape
    source: Count | None = None
    name: str | None = None
    number: str | None = None  # its value, if it is a single number on the host


class ObservedOperator(Record):
    """One operator of a step. `line` and `module` are empty if no user code called the operator."""

    name: str
    phase: Literal["between", "forward", "backward"]
    module: str
    line: str
    code: str
    arguments: list[str]  # each tensor is shown as a point
    reads: list[ReadTensor]
    makes: list[str | None]  # digests of the tensors that it returns
    leaves: list[str | None]  # digests of its inputs after it changed them; None for unchanged inputs
    writes: list[str] = Field(default_factory=list)  # names of the state that it changes
    replayed: bool = False
    captured_as: Count | None = None  # its number among the operators of its graph
    values: list[list[float]] | None = None  # values of the tensors that it returns, if requested


class ObservedStep(RunRecord):
    """One step of one execution of an arm: digests of named tensors, and the operators if they were observed.

    unseen: number of kernels captured outside of operators, and of replays of graphs whose operators were not observed.
    seconds: from the opening of the arm to the end of the step. bytes: size of the digests kept during observation.
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
        """Refuse a tensor whose source is not an earlier operator, because following sources must come to an end."""
        for number, operator in enumerate(self.operators or []):
            if any(read.source is not None and read.source >= number for read in operator.reads):
                raise ValueError(f"operator {number} reads what a later one made")
        return self
