"""Define the records that a worker writes about one arm: start, end, gradients, capture, host syncs, memory."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from harness.evidence.base import ArmRecord, Record, Scalar
from harness.numbers import Amount, Count, Real

CAPTURES_ITSELF = "captures_itself"  # name of the fact which states that the arm's step makes the capture by itself
RANDOM_WEIGHTS = "random_weights"  # name of the fact which states that no pretrained checkpoint was loaded
RESUMES = "resumes"  # name of the fact which states that the arm's step function has `save` and `load`
FROZEN = "frozen"  # prefix in `State.forms` of the names of frozen parameters
NOT_FINITE = "!"  # suffix of the digest of a tensor that holds NaN or infinity


# The sketch of a tensor: the epsilon of its data type, its L2 norm, and its sums under four fixed sequences of signs.
Sketch = tuple[Amount, Amount, Real, Real, Real, Real]


class State(Record):
    """The state that training may change: a digest of each tensor, by category and name, and the number of tensors."""

    digests: dict[str, dict[str, str]]
    tensors: Count
    # Values of tensors with one element, such as counters; key: `category name`. None: not recorded.
    numbers: dict[str, float] | None = None
    # Data type and shape of each tensor at the start, as `float32 [4, 2]`; key: `category name`. None: not recorded.
    forms: dict[str, str] | None = None
    # Number of bytes, at the end, of the optimizer's tensors with several elements; key: data type. None: not recorded.
    optimizer_bytes: dict[str, Count] | None = None


class EndDifference(Record):
    """Differences of parameters and buffers between the ends of this and of an earlier execution in the same run."""

    arm: str
    replica: Count
    tensors: Count  # number of compared parameters: those with the same name and shape in both executions
    largest: Amount | None  # largest absolute difference of any parameter; None: no parameter could be compared
    tensor: str | None  # name of the parameter with the largest difference
    buffers: Count | None = None  # number of compared floating-point buffers; None: not recorded
    # The largest difference of a buffer, divided by its largest element in the earlier execution. None: none compared.
    buffers_relative: Amount | None = None
    buffer: str | None = None  # name of the buffer with the largest difference


class MovedApart(Record):
    """Compares how this execution and another arm's first execution moved tensors from start to end.

    tensors: three L2 norms by `category name`: of the difference between the two movements, of the other arm's
    movement, and of the tensor at the end of this execution. A tensor created by the first step starts as 0. An
    optimizer's tensor is included if it has a parameter's shape. A data type other than float32 is added to its name.
    """

    arm: str
    tensors: dict[str, tuple[Amount, Amount, Amount]]
    # Tensors not compared: the other arm lacks them or has another shape, or they hold no floating-point number.
    uncompared: list[str]
    # Tensors of the other arm that this arm lacks or has in another shape. None: not recorded.
    missing: list[str] | None = None


class Draws(Record):
    """The operators that drew random numbers in one step, in order, with the shapes of the drawn tensors."""

    step: Count  # index of the watched step
    operators: list[str]  # operators that the host ran in the step; operators inside a graph are listed in `captured`
    captured: list[list[str]]  # one list of operators for each capture that was made before the arm's end
    generators: dict[str, str]  # for each generator that the step advanced: digest of its state after the step


# The role of a loose tensor in the training. A loose tensor was created by the steps outside the declared state.
# `state`: a later step reads it, or it changes without an operator that shows the change. `table`: a later step reads
# it, and no step changes it. `derived`: no step reads it, and it is computed only from parameters, such as an average.
# `log`: no step reads it, and it is computed from batches and single numbers, such as losses. `mixed`: no step reads
# it, and it is computed from parameters and batches, such as a sum of gradients. `left`: the last step created it, or
# it was created between two steps, so that no step could read it. `unseen`: no step reads it, and no watched step shows
# from what it is computed.
Role = Literal["state", "table", "derived", "log", "mixed", "left", "unseen"]
COMPARED: tuple[Role, ...] = ("state", "table", "derived")  # only tensors with one of these roles are compared by value


class Loose(Record):
    """Roles of loose tensors (which belong to no module or optimizer) that exist only at an execution's end."""

    # None: the steps could not be followed (see `failure`). Also None if the steps were timed; then the roles that
    # another arm recorded are used (see `lent`).
    roles: dict[str, Role] | None
    unread: dict[str, str]  # tensors whose values are not compared -> their digests
    failure: str | None = None
    lent: bool = False  # True: another arm recorded the roles, and they also apply to this arm


class ArmStart(ArmRecord):
    record: Literal["arm_start"] = "arm_start"
    trainable_digest: str
    frozen_digest: str
    trainable_tensors: Count
    facts: dict[str, Scalar]  # what the system reports about the arm: layers, device, dtype, parameters, text digest, …
    state: State | None = None  # None: evidence from before states were recorded
    trainable_names: list[str] | None = None  # None: evidence from before these names were recorded
    trainable_dtypes: list[str] | None = None  # data types of the trainable tensors; None: not recorded
    # digest of the trainable tensors after they were rounded to `PlannedArm.rounded_to`
    rounded_digest: str | None = None
    sketches: dict[str, Sketch] | None = None  # sketches of the parameters; key: `category name`; None: not requested


class Clip(Record):
    """Gradient clipping in the watched steps. A clip is a bound on gradients that is computed from gradients."""

    # True: a clip was seen; None: unknown, because code was compiled or the host read numbers computed from gradients
    seen: bool | None
    acted: bool  # True: the clip changed a gradient
    operator: str = ""  # name of the operator that applies the bound


class ArmEnd(ArmRecord):
    record: Literal["arm_end"] = "arm_end"
    trainable_digest: str
    frozen_digest: str
    skipped_steps: Count
    steps_called: Count
    capture_attempts: Count | None = None  # number of captures whose beginning the harness observed; None: not watched
    # errors of failed captures, including errors that user code caught; None: not watched
    capture_errors: list[str] | None = None
    state: State | None = None  # state at the end; None: not recorded
    differences: list[EndDifference] | None = None
    moved_apart: list[MovedApart] | None = None  # None: no claim reads these differences
    # None: the steps were not watched for loose tensors, or the evidence is older than this field
    loose: Loose | None = None
    # Loose tensors that the first step created and no later step changed. Only in older evidence; None: not recorded.
    still: list[str] | None = None
    # Loose tensors that the first step created and in which a NaN appeared in a later step. None: not recorded.
    spoiled: list[str] | None = None
    # names of the last step's inputs; None: the system does not show its inputs, or older evidence
    input_names: list[str] | None = None
    # number of different sets of shapes and types of the steps' inputs; None: the system does not show its inputs
    input_shapes: Count | None = None
    # The different amounts by which the optimizers' own step counters increased. None: not recorded.
    updates: list[Count] | None = None
    # Operators that compute: in the captures of the arm, or in one step of an arm without a capture. None: not watched.
    operators: list[str] | None = None
    # Operators that compute, in the first step after the warm steps of an arm without a capture. A capture records this
    # step. None: the arm is captured, or older evidence.
    first_operators: list[str] | None = None
    draws: Draws | None = None  # None: no step was watched, or older evidence
    sketches: dict[str, Sketch] | None = None  # sketches of the whole floating-point state; None: not requested
    # The largest sum, over the watched steps, of the absolute values of the loss's terms. None: not watched.
    loss_terms: Amount | None = None
    # Number of replays of graphs and of recorded steps that the harness observed. None: not watched.
    replays: Count | None = None
    # The distance between start and end, divided by the norm at the start, for the median trainable tensor. None: not
    # recorded, or all tensors were zero at the start.
    moved: Amount | None = None
    clip: Clip | None = None  # None: not watched
    # Digest of the operators of the watched step, in order, with types, shapes and strides. None: not watched.
    step_form: str | None = None


class MicroBatches(ArmRecord):
    """Digests of the micro-batches of consecutive steps: one list per step, one digest per micro-batch, in order."""

    record: Literal["micro_batches"] = "micro_batches"
    key: ClassVar = ("arm", "replica", "first_step")
    first_step: Count
    digests: list[list[str]]


class RankSteps(ArmRecord):
    """The work of one rank in every step of one execution. Judges of data-parallel training read this record."""

    record: Literal["rank_steps"] = "rank_steps"
    parameters: list[str]  # digest of all trainable parameters: one before the first step, and one after each step
    rows: list[list[str]]  # for each step: one digest for every row of its batch, in order
    # for each step: the number of collectives that the host began, in all process groups together
    collectives: list[Count]
    # Collectives in the last step that has collectives: name -> number, from torch's flight recorder. Empty: unknown.
    names: dict[str, Count]
    parts: Count = 0  # number of sharded parameters, where each rank holds different elements
    # For each category: the number of elements that this rank held at the end, and the number on all ranks together.
    held: dict[str, tuple[Count, Count]] = Field(default_factory=dict)
    # For each generator that the step can reach, by name: digests of its state before the first step and after each
    # step. The list has only the first digest if no step advanced the generator. It is empty if a step created or
    # rebound the generator. None: older evidence.
    generators: dict[str, list[str]] | None = None


class TensorReduction(Record):
    """One gradient, reduced on the device to digest and maxima. Names with `baseline_`: the baseline arm's gradient."""

    name: str
    digest: str
    elements: Count
    max_abs: Amount
    max_abs_difference: Amount | None = None
    baseline_digest: str | None = None
    baseline_max_abs: Amount | None = None
    sketch: Sketch | None = None  # None: not requested, or the tensor holds no floating-point numbers


class GroupNorm(Record):
    """The L2 norm of one group of gradients that is clipped together.

    before: the norm before clipping, reported by the system.
    after: the norm after clipping, measured by the harness.
    """

    group: str
    before: Amount
    after: Amount


class Gradients(ArmRecord):
    record: Literal["gradients"] = "gradients"
    key: ClassVar = ("arm", "replica", "step")
    step: Count
    baseline: str | None
    tensors: list[TensorReduction]
    groups: list[GroupNorm]
    without: list[str] = Field(default_factory=list)  # names of trainable tensors without a gradient in this step
    # The gradients right after the backward pass, if one of the two arms changed a gradient before its step ended.
    # None: no arm changed a gradient, or an arm could not be watched.
    made: list[TensorReduction] | None = None
    made_norm: Amount | None = None  # L2 norm of all gradients in `made` of this arm together; None: not seen
    written: list[str] | None = None  # names of the gradients that the arm's optimizer overwrote; None: not seen


class StepReading(Record):
    """The largest error of one quantity in one step, over its tensors or groups. `ComparedStep` defines the error."""

    quantity: Literal["loss", "norms", "gradients", "exp_avg", "exp_avg_sq", "parameters"]
    tensors: Count
    error: Amount
    tensor: str  # name of the tensor or group with the largest error
    # The largest error of the yardstick arm (which shows what error is normal) in this quantity. None for an update.
    yardstick: Amount | None = None


class ComparedStep(ArmRecord):
    """Errors of a candidate's step against a reference's step that starts from the same state.

    Errors are relative. For loss, norms and gradients, the L2 norm of the difference is divided by the reference's L2
    norm. For moments and parameters, each element's difference is divided by the same update of absolute terms.
    """

    record: Literal["compared_step"] = "compared_step"
    key: ClassVar = ("arm", "replica", "step")
    reference: str
    yardstick: str
    step: Count
    readings: list[StepReading]


class GraphNodes(Record):
    """Nodes of one captured graph, counted by type. kernels: number of launches by readable kernel name."""

    label: str
    by_type: dict[str, Count]
    kernels: dict[str, Count]
    device_to_host_copies: Count
    # number of tensors that were clipped, read from the arguments of the clip kernels
    clipped_tensors: Count | None = None


class Launched(Record):
    """Launches of one graph with equal work. by_type, kernels: the device activities of one such launch."""

    launches: Count
    by_type: dict[str, Count]  # number of device activities of each type: kernel, memcpy, memset
    # how often each kernel ran; a kernel that is also in `GraphNodes` has the same name there
    kernels: dict[str, Count]


class OutsideWork(Record):
    """Device activities with one name that a step started outside of every graph launch."""

    name: str
    count: Count
    seconds: Amount


class DeviceWork(Record):
    """Device work that the profiler recorded in some steps. These steps were expected to be replays of graphs."""

    steps: Count
    launched: list[Launched]
    launched_seconds: Amount
    # seconds of the kernels that a step launched outside graphs; copies of a batch do not count
    outside_kernel_seconds: Amount
    # seconds of the kernels that were launched after the step; older evidence adds them to `outside_kernel_seconds`
    after_kernel_seconds: Amount = 0.0
    outside: list[OutsideWork]  # kernels, copies and fills by name; the one that took longest comes first


class StepWatch(Record):
    """ATen operations that reached the dispatcher in each step of the series. Steps that captured are left out."""

    steps: Count
    fewest_operations: Count  # smallest number of operations in one step
    most_operations: Count  # largest number of operations in one step
    busiest_step: Count  # index of the first step with `most_operations`
    # smallest number of operations within a replay of a recorded step; None: older evidence
    fewest_replayed: Count | None = None
    most_after: Count = 0  # largest number of operations after a step; in older evidence part of `most_operations`


class HostNumber(Record):
    """A Python number that plain steps keep changing, but that no replay changes. name: the path to the number.

    read: how and where the step uses the number; None if the step only increases it.
    """

    name: str
    read: str | None


LOSS_OUTPUT = "loss"  # name of the loss among the outputs of a step; the other outputs are named `parameters <name>`


class GhostReplay(Record):
    """Results of a test after the arm's end. It runs a captured step without its replays, and these without the step.

    The outputs of a step are its loss and the trainable parameters. None means that this was not tested.
    """

    replays: Count  # number of replays in the last step, by torch's replay method or of recorded steps
    failure: str | None = None  # the error that ended the test
    moves: bool | None = None  # True: a step on another batch changed parameters
    # True: the replays alone, without a call of the step, changed parameters
    moves_alone: bool | None = None
    # True: after a step on another batch, the replays alone gave different parameters than before that step
    alone_reads: bool | None = None
    # True: a step without its replays did not change parameters and returned the loss of the previous step
    stays: bool | None = None
    # True: an output of the step depends on its batch. Tested only if `stays` is not True or `alone_reads` is False.
    # None: not tested, or all steps had the same batch.
    reads: bool | None = None
    # In the test for `reads`: outputs that repeat their bits, depend on the batch, and stay equal without replays.
    outside: Count = 0
    named: list[str] = Field(default_factory=list)  # the first few names of the outputs that `outside` counts
    # In the test for `reads`: outputs that are computed again without the replays and do not repeat their bits.
    unsure: Count = 0
    # Only if all steps had the same batch: the number of parameters, if all of them stay the same without the replays,
    # although their gradients differ. Otherwise 0.
    alike: Count = 0


class CaptureEvidence(ArmRecord):
    """The system's report about an arm's capture, and the harness's own observations of this capture."""

    record: Literal["capture"] = "capture"
    mechanism: Literal["cuda_graph", "traced"] | None
    requested: bool
    captured: bool
    failure: str | None  # why nothing was captured, in the words of the system; None: something was captured
    captures: Count
    warmup_steps: Count
    replays: Count  # number of replays, as counted by the system
    uncaptured_steps: Count
    nodes: list[GraphNodes]
    recorded_operations: Count  # for a traced step: number of recorded ATen operations
    # For a traced step: True if its body ran under fake tensors without a host sync. None: unknown for some operators.
    fake_pass_clean: bool | None
    moved_buffers: list[str]  # names of the static buffers whose address changed
    static_buffers: Count
    observed_steps: Count  # number of steps that the harness watched
    observed_graph_launches: Count | None  # number of cudaGraphLaunch calls that the profiler recorded in these steps
    # For a traced step: number of operations that a dispatch mode observed in the replays of the observed steps. Older
    # evidence counts whole steps.
    observed_replayed_operations: Count | None
    device_work: DeviceWork | None = None  # None: no replay was watched by the profiler
    every_step: StepWatch | None = None  # None: the steps of the series were not watched one by one
    # True: the profiler recorded the host sync planted after the watched steps. None: no profiler, or old evidence.
    profiler_sees_planted: bool | None = None
    # Paths of Python values that the step changed during its capture and no replay changes. Empty in older evidence.
    host_changes: list[str] = Field(default_factory=list)
    host_numbers: list[HostNumber] | None = None  # None: the step makes its capture by itself, or older evidence
    # For a traced step: places where the recorded step checked whether it was being captured. Empty in older evidence.
    asked_whether_captured: list[str] = Field(default_factory=list)
    # For a traced step: operators that fake tensors do not support, with unknown host syncs. Empty in older evidence.
    unseen_operators: list[str] = Field(default_factory=list)
    # For a traced step: places where it called compiled code, which was recorded uncompiled. Empty in older evidence.
    as_written: list[str] = Field(default_factory=list)
    # number of plain steps before the capture, which `uncaptured_steps` does not count; 0 in older evidence
    warm_steps: Count = 0
    ghost: GhostReplay | None = None  # None: not tested, or older evidence


class SyncPlace(Record):
    file: str
    line: Count
    operation: str
    count: Count


class DetectorReading(Record):
    """One detector's count of host syncs over `steps` steps. sees_planted: whether it detects a planted sync."""

    detector: Literal["dispatch_mode", "fake_pass", "profiler", "sync_debug_mode", "waiting_calls"]
    steps: Count
    count: Count
    places: list[SyncPlace]
    sees_planted: bool
    first_step: Count | None = None  # in a series: index of the first step with a host sync
    most: Count | None = None  # in a series: the largest number of host syncs in one step; None: not recorded
    busiest_step: Count | None = None  # in a series: index of the first step with `most` host syncs


class OnAGpu(Record):
    """The behavior of a step on a GPU, predicted on a CPU: findings with source lines. No verdict depends on them."""

    copies: list[str]  # copies of tensors or Python numbers from host to device; no capture can contain such a copy
    changes: list[str]  # changes of host tensors; no replay repeats such a change
    unknown: list[str]  # copies to the device whose source may already be on the device
    unrepeated: list[str]  # operators whose results on CUDA are not equal in bits when they are repeated
    # Updates by optimizers of torch that were created without `capturable=True`. In older evidence, only those updates
    # that also read a value on a CPU.
    of_cpu: list[str]
    failure: str | None = None  # why nothing could be predicted


class HostSyncEvidence(ArmRecord):
    record: Literal["host_syncs"] = "host_syncs"
    layers: Count
    replayed: bool  # True: the observed steps were replays of a capture
    readings: list[DetectorReading]
    # Readings over all judged steps. Empty: these steps were not watched.
    every_step: list[DetectorReading] = Field(default_factory=list)
    # why the step did not run under fake tensors; None: it did run, or this was not tried
    fake_tensors_error: str | None = None
    # None: the arm requests no capture or was executed on a GPU, or older evidence.
    on_a_gpu: OnAGpu | None = None


class Saved(ArmRecord):
    """An arm's training was saved. The `ArmEnd` of this execution has the state at the time of the save."""

    record: Literal["saved"] = "saved"
    steps: Count  # number of steps before the save
    process: Count  # number of the process that saved the state
    files: Count  # number of files of the checkpoint, counted after the saving process had ended its threads
    bytes: Count
    # Number of steps that this process made after the save. They are not in any series. None: not recorded.
    steps_after: Count | None = None


class Loaded(ArmRecord):
    """An arm's training was loaded from a checkpoint. Steps before the load are not in the series."""

    record: Literal["loaded"] = "loaded"
    process: Count  # number of the process that loaded the state
    steps_before: Count  # number of steps that this process made before it loaded the state
    trainable_before: str  # digest of the trainable parameters before the state was loaded
    trainable_after: str
    after: State  # state right after loading


class Evaluated(ArmRecord):
    """One evaluation between two steps, with digests of the state before and after the evaluation, by category."""

    record: Literal["evaluated"] = "evaluated"
    key: ClassVar = ("arm", "replica", "steps")
    steps: Count  # number of steps before the evaluation
    values: dict[str, Real]  # numbers that the evaluation returned, by their names
    before: dict[str, str]
    after: dict[str, str]
    # `category name` of each tensor that existed before the evaluation and that the evaluation changed
    changed: list[str]


class MemorySample(Record):
    step: Count
    allocated_bytes: Count
    reserved_bytes: Count


class MemoryEvidence(ArmRecord):
    record: Literal["memory"] = "memory"
    key: ClassVar = ("arm", "replica", "per")
    per: Literal["replay", "recapture"]
    samples: list[MemorySample]


class MemoryPeak(Record):
    """Peak memory of an arm's process during one phase.

    The figures of the allocator are torch's own statistics. The figures of the device are samples of the used memory
    that the driver reports, minus the memory used before this process used the device. None: not read.
    """

    allocated_bytes: Count
    reserved_bytes: Count
    device_bytes: Count | None
    outside_bytes: Count | None  # largest device memory, in bytes, in use outside torch's allocator at one moment
    samples: Count  # number of samples of the device's memory


class PeakMemoryEvidence(ArmRecord):
    record: Literal["peak_memory"] = "peak_memory"
    opening: MemoryPeak
    steps: MemoryPeak  # peak during the steps, including warm-up and capture
    # how often user code reset torch's peak statistics; the recorded peaks include the values before each reset
    resets: Count
    # How often the statistics fell without a reset that the harness observed. An earlier peak may have been higher.
    lost_peaks: Count
    foreign_processes: Count | None  # largest number of other processes on the device at one time; None: unknown
    allocator: str  # name of torch's allocator backend
    allocator_settings: str  # allocator settings, from the environment variables


class ReplayBlock(Record):
    """Consecutive steps of a long run: digests to compare with the other arm's block, the time, and used memory."""

    first_step: Count
    steps: Count
    losses: str  # digest of the losses of all steps, in order
    batches: str  # digest of the batches of all steps, in order
    first_non_finite: Count | None  # index of the first step whose loss is NaN or infinite
    # seconds between two device synchronizations, including the time in which the harness records each step
    seconds: Amount
    yardstick_seconds: Amount  # seconds of a fixed piece of work that was executed right after the block
    allocated_bytes: Count | None  # bytes allocated after the block; None: no CUDA
    reserved_bytes: Count | None


class ReplayRound(Record):
    """Seconds per step of four blocks that were timed after the last step, in the order old, fresh, fresh, old arm."""

    old: tuple[Amount, Amount]  # the first and the last block, executed by the arm of the long run
    # the second and the third block, executed by an arm that was opened and captured after the run
    fresh: tuple[Amount, Amount]


class LongReplayEvidence(ArmRecord):
    """A long run in blocks of `every` steps. The arm's series has one row for each block: the block's last step."""

    record: Literal["long_replay"] = "long_replay"
    every: Count
    distinct_batches: Count  # number of different batches among all steps
    blocks: list[ReplayBlock]
    # Alternating blocks of the arm and of a second arm that was opened and captured after the last step. None: the arm
    # is a baseline, or older evidence.
    rounds: list[ReplayRound] | None = None
    no_rounds: str | None = None  # why a fresh arm could not be opened in addition to the old one
    ended: str | None = None  # the error that the trainer raised after its last step; None: the trainer made all steps
