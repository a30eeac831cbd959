"""Define the records that a worker writes about one arm: start, end, gradients, capture, host syncs, memory."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from harness.evidence.base import ArmRecord, Record, Scalar
from harness.numbers import Amount, Count, Real

# name of the fact that the arm's step function captures the step itself, so that the system does not capture it
CAPTURES_ITSELF = "captures_itself"
# name of the fact that the model has random weights, because no pretrained checkpoint was loaded
RANDOM_WEIGHTS = "random_weights"
# name of the fact that the arm's step function has `save` and `load`, so that training can be resumed
RESUMES = "resumes"
FROZEN = "frozen"  # prefix in `State.forms` of the names of frozen parameters
NOT_FINITE = "!"  # suffix of the digest of a tensor that holds NaN or infinity


# The sketch of a tensor: six numbers. The sketches of two tensors show how close the tensors are. The numbers are the
# epsilon of the data type, the L2 norm, and the sums of the elements under four fixed sequences of signs.
Sketch = tuple[Amount, Amount, Real, Real, Real, Real]


class State(Record):
    """The state that training may change: a digest of each tensor, by category (such as optimizer) and name, and the
    number of tensors."""

    digests: dict[str, dict[str, str]]
    tensors: Count
    # Values of tensors with one element, such as counters. The keys are `category name`. None: not recorded.
    numbers: dict[str, float] | None = None
    # Data type and shape of each tensor at the start, such as `float32 [4, 2]`. The keys are `category name`. None: not
    # recorded.
    forms: dict[str, str] | None = None
    # Bytes of the optimizer's tensors at the end, by data type, without tensors with a single element. None: not
    # recorded.
    optimizer_bytes: dict[str, Count] | None = None


class EndDifference(Record):
    """Differences of parameters and buffers between the end of this execution and the end of an earlier execution in
    the same run."""

    arm: str
    replica: Count
    tensors: Count  # number of compared parameters: those with the same name and shape in both executions
    # largest absolute difference in any compared parameter; None: no parameter could be compared
    largest: Amount | None
    tensor: str | None  # name of the parameter with the largest difference
    buffers: Count | None = None  # number of compared floating-point buffers; None: not recorded
    # The largest difference in a buffer, divided by that buffer's largest element in the earlier execution. None: no
    # buffer could be compared.
    buffers_relative: Amount | None = None
    buffer: str | None = None  # name of the buffer with the largest difference


class MovedApart(Record):
    """How differently this execution and another arm's first execution moved each tensor from start to end.

    tensors: three L2 norms for each tensor, by `category name`: of the difference between the two movements, of the
    other arm's movement, and of the tensor at the end of this execution. A tensor that the first step created counts as
    0 at the start. A tensor of an optimizer is included if it has the shape of a parameter. If the data type is not
    float32, it is part of the name.
    """

    arm: str
    tensors: dict[str, tuple[Amount, Amount, Amount]]
    # Names of tensors that were not compared, because the other arm lacks this tensor or has it in another shape, or
    # because the tensor does not hold floating-point numbers.
    uncompared: list[str]
    # Names of tensors of the other arm that this arm does not have, or has in another shape. None: not recorded.
    missing: list[str] | None = None


class Draws(Record):
    """The operators that drew random numbers in one step, in order, with the shapes of the drawn tensors."""

    step: Count  # index of the step whose random numbers were recorded
    # operators that the host executed in the step; operators inside a graph are listed in `captured`
    operators: list[str]
    # for each capture that was made before the arm's end: the operators in the captured graph that draw random numbers
    captured: list[list[str]]
    # for each generator that the step advanced, by name: digest of the generator's state after the step
    generators: dict[str, str]


# The role of a loose tensor in the training. A loose tensor was created by the steps and belongs to no module or
# optimizer.
# - `state`: A later step reads the tensor, or the tensor changes without an operator that shows the change.
# - `table`: A later step reads the tensor, and no step changes it.
# - `derived`: No step reads the tensor, and it is computed only from parameters, such as an average of parameters.
# - `log`: No step reads the tensor, and it is computed from batches and single numbers, such as losses.
# - `mixed`: No step reads the tensor, and it is computed from parameters and batches, such as a sum of gradients.
# - `left`: No step could read the tensor, because the last step created it, or it was created between two steps.
# - `unseen`: No step reads the tensor, and no watched step shows from which values it is computed.
Role = Literal["state", "table", "derived", "log", "mixed", "left", "unseen"]
COMPARED: tuple[Role, ...] = ("state", "table", "derived")  # only tensors with one of these roles are compared by value


class Loose(Record):
    """The roles of the loose tensors at the end of an execution. Loose tensors were created by the steps and belong to
    no module or optimizer."""

    # The role of each loose tensor, by name. None: the steps could not be followed (see `failure`), or they were timed.
    # For timed steps, the roles that another arm recorded are used (see `lent`).
    roles: dict[str, Role] | None
    unread: dict[str, str]  # names of tensors whose values are not compared -> digests of these tensors
    failure: str | None = None
    lent: bool = False  # True: the roles were recorded by another arm, and this arm has the same tensors


class ArmStart(ArmRecord):
    record: Literal["arm_start"] = "arm_start"
    trainable_digest: str
    frozen_digest: str
    trainable_tensors: Count
    # facts that the system reports, such as numbers of layers and parameters, device, dtype, digest of the training
    # text
    facts: dict[str, Scalar]
    # the state at the start; None: evidence of an older version, which did not record states
    state: State | None = None
    trainable_names: list[str] | None = None  # None: evidence of an older version, which did not record these names
    trainable_dtypes: list[str] | None = None  # data types of the trainable tensors; None: not recorded
    # digest of the trainable tensors, rounded to the data type `PlannedArm.rounded_to`
    rounded_digest: str | None = None
    # sketches (see `Sketch`) of the parameters; the keys are `category name`; None: not requested
    sketches: dict[str, Sketch] | None = None


class Clip(Record):
    """Gradient clipping in the watched steps. A clip is recognized by an operator, such as `clamp`, that bounds one of
    two things: gradients, or a number that is computed from gradients and then changes them (such as a scale)."""

    # True: a clip was seen. None: unknown, for example because code was compiled, or because the host read numbers that
    # were computed from gradients.
    seen: bool | None
    acted: bool  # True: the clip changed at least one gradient
    operator: str = ""  # name of the operator that applies the bound to the gradients


class ArmEnd(ArmRecord):
    record: Literal["arm_end"] = "arm_end"
    trainable_digest: str
    frozen_digest: str
    skipped_steps: Count
    steps_called: Count
    # number of captures that began while the harness observed the arm; None: not observed
    capture_attempts: Count | None = None
    # errors of failed captures, including errors that user code caught; None: not observed
    capture_errors: list[str] | None = None
    state: State | None = None  # state at the end; None: not recorded
    differences: list[EndDifference] | None = None
    moved_apart: list[MovedApart] | None = None  # None: no claim compares how tensors move
    # None: the steps were not searched for loose tensors, or the evidence is of an older version
    loose: Loose | None = None
    # Names of loose tensors that the first step created and no later step changed. Only older versions record them.
    # None: not recorded.
    still: list[str] | None = None
    # Names of loose tensors that the first step created and in which a later step left a NaN. None: not recorded.
    spoiled: list[str] | None = None
    # names of the last step's inputs; None: the system does not show its inputs, or the evidence is of an older version
    input_names: list[str] | None = None
    # number of different combinations of shapes and types in the steps' inputs; None: the system does not show its
    # inputs
    input_shapes: Count | None = None
    # The different amounts by which the optimizers' step counters increased, each amount once. None: not recorded.
    updates: list[Count] | None = None
    # Names of the operators that compute something in the arm's captures or, for an arm without a capture, in one step.
    # None: not observed.
    operators: list[str] | None = None
    # For an arm without a capture: names of the operators that compute something in the step that a captured arm would
    # record (the first step after the warm steps). None: the arm is captured, or the evidence is of an older version.
    first_operators: list[str] | None = None
    draws: Draws | None = None  # None: no step was observed, or the evidence is of an older version
    # sketches (see `Sketch`) of all floating-point tensors of the state; None: not requested
    sketches: dict[str, Sketch] | None = None
    # The sum of the absolute values of the terms that are added up to the loss, in the observed step in which this sum
    # is largest. None: not observed.
    loss_terms: Amount | None = None
    # Number of replays, of CUDA graphs or of recorded steps, that the harness observed. None: not observed.
    replays: Count | None = None
    # The median, over the trainable tensors, of the distance from start to end divided by the tensor's norm at the
    # start. None: not recorded, or all tensors were zero at the start.
    moved: Amount | None = None
    clip: Clip | None = None  # None: not observed
    # Digest of the observed step's operators, in order, with the types, shapes and strides of their tensors. None: not
    # observed.
    step_form: str | None = None


class MicroBatches(ArmRecord):
    """Digests of the micro-batches of consecutive steps: a list for each step, with one digest for each micro-batch, in
    order."""

    record: Literal["micro_batches"] = "micro_batches"
    key: ClassVar = ("arm", "replica", "first_step")
    first_step: Count
    digests: list[list[str]]


class RankSteps(ArmRecord):
    """The work of one rank in each step of one execution. Judges of data-parallel training read this record."""

    record: Literal["rank_steps"] = "rank_steps"
    parameters: list[str]  # digest of all trainable parameters: one before the first step, and one after each step
    rows: list[list[str]]  # for each step: one digest for every row of its batch, in order
    # for each step: the number of collectives that the host started, over all process groups
    collectives: list[Count]
    # Collectives of the last step that has collectives: name -> number, from torch's flight recorder. Empty: unknown.
    names: dict[str, Count]
    parts: Count = 0  # number of sharded parameters, of which each rank holds different elements
    # For each category of state: the number of elements that this rank held at the end, and the number that all ranks
    # held together.
    held: dict[str, tuple[Count, Count]] = Field(default_factory=dict)
    # For each random generator that the step can reach, by name: digests of its state before the first step and after
    # each step. If no step advanced the generator, the list has only the first digest. If a step created or replaced
    # the generator, the list is empty. None: the evidence is of an older version.
    generators: dict[str, list[str]] | None = None


class TensorReduction(Record):
    """The gradient of one tensor, reduced on the device to a digest and largest absolute values. Fields whose names
    begin with `baseline_` are about the baseline's gradient of the same tensor."""

    name: str
    digest: str
    elements: Count
    max_abs: Amount
    max_abs_difference: Amount | None = None
    baseline_digest: str | None = None
    baseline_max_abs: Amount | None = None
    sketch: Sketch | None = None  # None: not requested, or the gradient holds no floating-point numbers


class GroupNorm(Record):
    """The L2 norm of one group of gradients that are clipped together.

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
    # The gradients right after the backward pass, if one of the two compared arms changed a gradient before its step
    # ended. None: neither arm changed a gradient, or one of them could not be observed.
    made: list[TensorReduction] | None = None
    made_norm: Amount | None = None  # L2 norm of all gradients in `made` together, for this arm; None: unknown
    written: list[str] | None = None  # names of the gradients that this arm's optimizer overwrote; None: unknown


class StepReading(Record):
    """The largest error in one step, over the tensors or groups of one kind, such as all gradients. `ComparedStep`
    defines the error."""

    quantity: Literal["loss", "norms", "gradients", "exp_avg", "exp_avg_sq", "parameters"]
    tensors: Count
    error: Amount
    tensor: str  # name of the tensor or group with the largest error
    # The largest error of the yardstick arm, a third arm that shows how large normal errors are. None for moments and
    # parameters, for which no yardstick is computed.
    yardstick: Amount | None = None


class ComparedStep(ArmRecord):
    """Errors of a candidate's step, measured against a reference's step that starts from the same state.

    Errors are relative. For the loss, norms and gradients, the L2 norm of the difference is divided by the reference's
    L2 norm. For moments and parameters, the difference in each element is divided by the element's scale. The scale is
    the result of the same update, computed with the absolute values of all terms that the update adds up.
    """

    record: Literal["compared_step"] = "compared_step"
    key: ClassVar = ("arm", "replica", "step")
    reference: str
    yardstick: str
    step: Count
    readings: list[StepReading]


class GraphNodes(Record):
    """The nodes of one captured graph, counted by type. kernels: number of nodes by the name of the kernel's symbol."""

    label: str
    by_type: dict[str, Count]
    kernels: dict[str, Count]
    device_to_host_copies: Count
    # number of tensors that the graph clips, read from the arguments of its clip kernels; None: not counted
    clipped_tensors: Count | None = None


class Launched(Record):
    """Graph launches that did equal work. by_type, kernels: the device activities of one of these launches."""

    launches: Count
    by_type: dict[str, Count]  # number of device activities of each type: kernel, memcpy, memset
    # how often each kernel ran, by name; the names are those in `GraphNodes`
    kernels: dict[str, Count]


class OutsideWork(Record):
    """Device activities with one name that a step started outside of every graph launch."""

    name: str
    count: Count
    seconds: Amount


class DeviceWork(Record):
    """The device's work in some steps, as the profiler recorded it. Each step should be a replay of graphs."""

    steps: Count
    launched: list[Launched]
    launched_seconds: Amount
    # seconds of the kernels that a step launched outside of graphs, without copies of the batch
    outside_kernel_seconds: Amount
    # seconds of the kernels that were launched after the step; older versions added them to `outside_kernel_seconds`
    after_kernel_seconds: Amount = 0.0
    outside: list[OutsideWork]  # kernels, copies and fills outside of graphs, by name; the longest time comes first


class StepWatch(Record):
    """Numbers of ATen operators that torch's dispatcher called in each step. Steps in which a capture was made are left
    out."""

    steps: Count
    fewest_operations: Count  # smallest number of operations in one step
    most_operations: Count  # largest number of operations in one step
    busiest_step: Count  # index of the first step with `most_operations`
    # smallest number of operations within a replay of a recorded step; None: evidence of an older version
    fewest_replayed: Count | None = None
    most_after: Count = 0  # largest number of operations after one step; in older versions part of `most_operations`


class HostNumber(Record):
    """A Python number that each step changes if the step is executed as code, but that no replay changes. name: the
    path to the number. read: how and where the step uses the number; None if the step only increases it."""

    name: str
    read: str | None


LOSS_OUTPUT = "loss"  # name of the loss among the outputs of a step; the other outputs are named `parameters <name>`


class GhostReplay(Record):
    """Results of a test after the arm's last step. In the test, the captured step runs without its replays, and its
    replays run without the step's code.

    The test shows if the replays do the training. The outputs of a step are its loss and the trainable parameters. If a
    field is None, its property was not tested.
    """

    # number of replays in the last step: calls of torch's replay method for graphs, or replays of recorded steps
    replays: Count
    failure: str | None = None  # the error that ended the test
    moves: bool | None = None  # True: a step on another batch changed parameters
    # True: the replays alone, without a call of the step, changed parameters
    moves_alone: bool | None = None
    # True: after a step on another batch, the replays alone gave different parameters than before that step
    alone_reads: bool | None = None
    # True: a step without its replays did not change parameters and returned the loss of the previous step
    stays: bool | None = None
    # True: an output of the step depends on the batch. Tested only if `stays` is not True or `alone_reads` is False.
    # None: not tested, or all steps had the same batch.
    reads: bool | None = None
    # In the test for `reads`: number of outputs that do not change if the replays are left out. Only outputs count that
    # depend on the batch and have equal bits when the step is repeated.
    outside: Count = 0
    named: list[str] = Field(default_factory=list)  # the first few names of the outputs that `outside` counts
    # In the test for `reads`: number of outputs that are computed even without the replays, and whose bits differ when
    # the step is repeated.
    unsure: Count = 0
    # If all steps had the same batch, and a step gave equal parameters with and without its replays: the number of
    # these parameters. Otherwise 0. Equal parameters prove nothing here, because different gradients may round to them.
    alike: Count = 0


class CaptureEvidence(ArmRecord):
    """The system's report about an arm's capture, and the harness's own observations of this capture."""

    record: Literal["capture"] = "capture"
    mechanism: Literal["cuda_graph", "traced"] | None
    requested: bool
    captured: bool
    failure: str | None  # the reason why nothing was captured, as the system gave it; None: something was captured
    captures: Count
    warmup_steps: Count
    replays: Count  # number of replays, as counted by the system
    uncaptured_steps: Count
    nodes: list[GraphNodes]
    recorded_operations: Count  # for a traced step (a step recorded without a GPU): number of recorded ATen operations
    # For a step recorded without a GPU: True if its code ran on fake tensors (without data) and no host sync was found.
    # None: unknown for some operators.
    fake_pass_clean: bool | None
    moved_buffers: list[str]  # names of the static buffers (memory that the graph uses) whose address changed
    static_buffers: Count
    observed_steps: Count  # number of steps that the harness observed
    observed_graph_launches: Count | None  # number of cudaGraphLaunch calls that the profiler recorded in these steps
    # For a step recorded without a GPU: number of operations in the replays of the observed steps, counted by a
    # dispatch mode. Older versions count all operations of these steps.
    observed_replayed_operations: Count | None
    device_work: DeviceWork | None = None  # None: the profiler recorded no replay
    every_step: StepWatch | None = None  # None: the steps were not observed one by one
    # True: the profiler recorded the host sync that the harness planted after the steps. None: there was no profiler,
    # or the evidence is of an older version.
    profiler_sees_planted: bool | None = None
    # Paths of Python values that the step changed during its capture, but that no replay changes. Empty if the evidence
    # is of an older version.
    host_changes: list[str] = Field(default_factory=list)
    # host numbers of the step; None: the step's own code makes the capture, or the evidence is of an older version
    host_numbers: list[HostNumber] | None = None
    # For a step recorded without a GPU: places in the code where the step asked whether it is being captured. Empty if
    # the evidence is of an older version.
    asked_whether_captured: list[str] = Field(default_factory=list)
    # For a step recorded without a GPU: operators that do not support fake tensors (without data), so that their host
    # syncs are unknown. Empty if the evidence is of an older version.
    unseen_operators: list[str] = Field(default_factory=list)
    # For a step recorded without a GPU: places in the code where compiled code was called, which was recorded without
    # compiling it. Empty if the evidence is of an older version.
    as_written: list[str] = Field(default_factory=list)
    # number of plain steps before the capture; `uncaptured_steps` does not include them; 0 if the evidence is of an
    # older version
    warm_steps: Count = 0
    ghost: GhostReplay | None = None  # None: not tested, or the evidence is of an older version


class SyncPlace(Record):
    file: str
    line: Count
    operation: str
    count: Count


class DetectorReading(Record):
    """The number of host syncs that one detector counted in `steps` steps. sees_planted: True if the detector found a
    host sync that the harness planted."""

    detector: Literal["dispatch_mode", "fake_pass", "profiler", "sync_debug_mode", "waiting_calls"]
    steps: Count
    count: Count
    places: list[SyncPlace]
    sees_planted: bool
    first_step: Count | None = None  # if the steps were counted one by one: index of the first step with a host sync
    # if the steps were counted one by one: the largest number of host syncs in one step; None: not recorded
    most: Count | None = None
    # if the steps were counted one by one: index of the first step with `most` host syncs
    busiest_step: Count | None = None


class OnAGpu(Record):
    """A prediction, made on a CPU, of what a step would do on a GPU, with source lines. No verdict depends on it."""

    copies: list[str]  # copies of tensors or Python numbers from host to device, which make a capture fail
    changes: list[str]  # changes of tensors on the host, which no replay repeats
    unknown: list[str]  # copies to the device whose source may already be on the device
    unrepeated: list[str]  # operators that give different bits on CUDA when they are repeated
    # Updates by optimizers of torch that were created without `capturable=True`. Older versions list only updates that
    # also read a value on the CPU.
    of_cpu: list[str]
    failure: str | None = None  # the reason why nothing could be predicted; None: the step was predicted


class HostSyncEvidence(ArmRecord):
    record: Literal["host_syncs"] = "host_syncs"
    layers: Count
    replayed: bool  # True: the observed steps were replays of a capture
    readings: list[DetectorReading]
    # Host syncs that each detector counted in all judged steps. Empty: the detectors did not observe all steps.
    every_step: list[DetectorReading] = Field(default_factory=list)
    # error of the step on fake tensors (tensors without data); None: it ran without an error, or was not tried on them
    fake_tensors_error: str | None = None
    # None: the arm requests no capture, ran on a GPU, or the evidence is of an older version
    on_a_gpu: OnAGpu | None = None


class Saved(ArmRecord):
    """The training of an arm was saved in a checkpoint. The execution's `ArmEnd` has the state at this moment."""

    record: Literal["saved"] = "saved"
    steps: Count  # number of steps before the save
    process: Count  # number of the process that saved the state
    files: Count  # number of files in the checkpoint, counted after the threads of the saving process had ended
    bytes: Count
    # Number of steps that this process made after saving. No series contains them. None: not recorded.
    steps_after: Count | None = None


class Loaded(ArmRecord):
    """The training of an arm was resumed from a checkpoint. The execution's series lacks the steps before the load."""

    record: Literal["loaded"] = "loaded"
    process: Count  # number of the process that loaded the state
    steps_before: Count  # number of steps that this process made before it loaded the state
    trainable_before: str  # digest of the trainable parameters before the state was loaded
    trainable_after: str
    after: State  # state right after loading


class Evaluated(ArmRecord):
    """One evaluation between two steps. before, after: a digest of each category of the state, before and after the
    evaluation."""

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
    """Peak memory of an arm's process during one phase of the run.

    Allocated and reserved bytes are torch's own statistics. `device_bytes` is the largest sample of the device's used
    memory, as the driver reports it, minus the memory that was in use before this process used the device. None:
    unknown.
    """

    allocated_bytes: Count
    reserved_bytes: Count
    device_bytes: Count | None
    outside_bytes: Count | None  # largest number of bytes in use outside of torch's allocator at one moment
    samples: Count  # number of samples of the device's memory


class PeakMemoryEvidence(ArmRecord):
    record: Literal["peak_memory"] = "peak_memory"
    opening: MemoryPeak
    steps: MemoryPeak  # peak during the steps, including warm-up and capture
    # number of times that user code reset torch's peak statistics; the recorded peaks include the values before resets
    resets: Count
    # Number of times that torch's peak statistics fell without a reset that the harness observed. A peak before the
    # fall may then be missing here.
    lost_peaks: Count
    foreign_processes: Count | None  # largest number of other processes that used the device at one time; None: unknown
    allocator: str  # name of torch's allocator backend
    allocator_settings: str  # allocator settings, from the environment variables


class ReplayBlock(Record):
    """Consecutive steps (a block) of a long run: seconds, used memory, and digests. The digests are compared with those
    of the other arm's block with the same steps."""

    first_step: Count
    steps: Count
    losses: str  # digest of the losses of all steps, in order
    batches: str  # digest of the batches of all steps, in order
    first_non_finite: Count | None  # index of the first step whose loss is NaN or infinite
    # seconds of the block, including the harness's own work after each step; the harness waits for the device before
    # the first and after the last step
    seconds: Amount
    # seconds of a fixed piece of work right after the block; in a later block, they show if the machine became slower
    yardstick_seconds: Amount
    allocated_bytes: Count | None  # bytes allocated after the block; None: no CUDA
    reserved_bytes: Count | None


class ReplayRound(Record):
    """Seconds per step of four blocks that were timed after the run's last step. The arm of the long run (old) and an
    arm that was opened anew (fresh) executed them in the order old, fresh, fresh, old."""

    old: tuple[Amount, Amount]  # the first and the fourth block, executed by the arm of the long run
    # the second and the third block, executed by an arm that was opened and captured after the run
    fresh: tuple[Amount, Amount]


class LongReplayEvidence(ArmRecord):
    """A long run, divided into blocks of `every` steps. The arm's series has one row for each block's last step."""

    record: Literal["long_replay"] = "long_replay"
    every: Count
    distinct_batches: Count  # number of different batches among all steps
    blocks: list[ReplayBlock]
    # Timings in which the arm takes turns with a fresh arm, which was opened and captured after the last step. None:
    # the arm is a baseline, or the evidence is of an older version.
    rounds: list[ReplayRound] | None = None
    no_rounds: str | None = None  # the reason why no fresh arm could be opened in addition to the old one
    # the error that the trainer raised instead of training all steps; None: it trained all steps
    ended: str | None = None
