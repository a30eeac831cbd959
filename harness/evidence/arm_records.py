"""Define the records that a worker writes about one arm: start, end, gradients, capture, host syncs, memory."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from harness.evidence.base import ArmRecord, Record, Scalar
from harness.numbers import Amount, Count, Real

CAPTURES_ITSELF = "captures_itself"  # name of the fact that the arm's step itself makes the requested capture
RESUMES = "resumes"  # name of the fact that the arm's step function has `save` and `load`
FROZEN = "frozen"  # prefix of the names of frozen parameters in `State.forms`
NOT_FINITE = "!"  # suffix of the digest of a tensor that holds NaN or infinity


# a tensor's sketch: epsilon of its data type, its L2 norm, and its sums under four fixed sequences of signs
Sketch = tuple[Amount, Amount, Real, Real, Real, Real]


class State(Record):
    """The state that training may change: a digest of each tensor, by category and name, and the number of tensors."""

    digests: dict[str, dict[str, str]]
    tensors: Count
    # values of tensors with one element, such as counters, by `category name`; None: not recorded
    numbers: dict[str, float] | None = None
    # data types and shapes at the start, such as `float32 [4, 2]`, by `category name`; None: not recorded
    forms: dict[str, str] | None = None
    # bytes, at the end, of optimizer tensors with several elements, by data type; None: not recorded
    optimizer_bytes: dict[str, Count] | None = None


class EndDifference(Record):
    """Differences of parameters and buffers between the ends of this execution and of an earlier one in its run."""

    arm: str
    replica: Count
    tensors: Count  # compared parameters, which have the same name and shape in both executions
    largest: Amount | None  # largest absolute difference of a parameter; None: nothing could be compared
    tensor: str | None  # the parameter with that difference
    buffers: Count | None = None  # compared floating-point buffers; None: not recorded
    # largest difference of a buffer, divided by its largest element in the earlier execution; None: nothing compared
    buffers_relative: Amount | None = None
    buffer: str | None = None  # the buffer with that difference


class MovedApart(Record):
    """Compare how this execution and another arm's first execution moved tensors from start to end.

    tensors: three L2 norms by `category name`: of the difference between the two movements, of the other arm's
    movement, and of the tensor at this execution's end. A tensor that the first step created counts as 0 at the start.
    An optimizer's tensor is included if it has the shape of a parameter. Its data type is added if it is not float32.
    """

    arm: str
    tensors: dict[str, tuple[Amount, Amount, Amount]]
    uncompared: list[str]  # tensors that the other arm lacks or has in another shape, or without floating-point numbers
    # tensors of the other arm that this arm lacks or has in another shape; None: not recorded
    missing: list[str] | None = None


class Draws(Record):
    """The operators that drew random numbers in one step, in order, with the shapes of the drawn tensors."""

    step: Count  # the watched step
    operators: list[str]  # operators that the host ran in the step; a graph's operators are in `captured`
    captured: list[list[str]]  # operators in each capture that was made until the arm's end
    generators: dict[str, str]  # digest, after the step, of each generator of the process that the step advanced


# The role in the training of a loose tensor that the steps created. `state`: a later step reads it, or it changes
# without an operator that shows the change. `table`: a later step reads it, and no step changes it. `derived`: nothing
# reads it, and it is computed from parameters only, such as an average. `log`: nothing reads it, and it is computed
# from batches and single numbers, such as losses. `mixed`: nothing reads it, and it is computed from parameters and
# batches, such as a sum of gradients. `left`: the last step left it behind, or it was created between two steps.
# `unseen`: nothing reads it, and no watched step shows what it is computed from.
Role = Literal["state", "table", "derived", "log", "mixed", "left", "unseen"]
COMPARED: tuple[Role, ...] = ("state", "table", "derived")  # roles whose tensors are compared by value


class Loose(Record):
    """Roles of loose tensors (of no module or optimizer) that exist at an execution's end and not at its start."""

    # None: the steps could not be followed (see `failure`), or were timed and use another arm's roles (see `lent`)
    roles: dict[str, Role] | None
    unread: dict[str, str]  # digests of all tensors whose values are not compared
    failure: str | None = None
    lent: bool = False  # True: the roles that another arm recorded also apply to this arm


class ArmStart(ArmRecord):
    record: Literal["arm_start"] = "arm_start"
    trainable_digest: str
    frozen_digest: str
    trainable_tensors: Count
    facts: dict[str, Scalar]  # layers, device, dtype, parameters, text digest, … as the system states them
    state: State | None = None  # None: recorded before states were
    trainable_names: list[str] | None = None  # None: recorded before they were
    trainable_dtypes: list[str] | None = None  # data types of the trainable tensors; None: not recorded
    rounded_digest: str | None = None  # digest of the trainable tensors, rounded to `PlannedArm.rounded_to`
    sketches: dict[str, Sketch] | None = None  # sketches of the parameters, by `category name`; None: not requested


class Clip(Record):
    """Gradient clipping seen in the watched steps: gradients are scaled by a number that is computed from gradients."""

    seen: bool | None  # None: unknown, because the code was compiled or the host read such numbers
    acted: bool  # the bound changed a gradient
    operator: str = ""  # the operator that applies the bound


class ArmEnd(ArmRecord):
    record: Literal["arm_end"] = "arm_end"
    trainable_digest: str
    frozen_digest: str
    skipped_steps: Count
    steps_called: Count
    capture_attempts: Count | None = None  # captures that the harness saw begin; None: not watched
    capture_errors: list[str] | None = None  # errors of failed captures, even if they were caught; None: not watched
    state: State | None = None  # as in `ArmStart`
    differences: list[EndDifference] | None = None
    moved_apart: list[MovedApart] | None = None  # None: no claim reads it
    loose: Loose | None = None  # None: the steps were not watched for it, or recorded before they were
    # loose tensors that the first step created and no later step changed; None: not recorded, as in all newer evidence
    still: list[str] | None = None
    # loose tensors that the first step created and that contain a NaN only since a later step; None: not recorded
    spoiled: list[str] | None = None
    input_names: list[str] | None = None  # names of the last step's inputs; None: not shown, or older
    input_shapes: Count | None = None  # number of different shapes and types among the steps' inputs; None: not shown
    # the different increases of the optimizers' own step counters; None: not recorded
    updates: list[Count] | None = None
    # operators that compute, in the arm's captures, or in one step of an uncaptured arm; None: not watched
    operators: list[str] | None = None
    draws: Draws | None = None  # None: no step was watched, or older evidence
    sketches: dict[str, Sketch] | None = None  # sketches of all floating-point state; None: not requested
    # largest sum of the absolute terms of a watched step's loss; None: not watched
    loss_terms: Amount | None = None
    replays: Count | None = None  # replays of graphs and recorded steps that the harness saw; None: not watched
    # movement of the median trainable tensor divided by its norm at the start; None: not recorded, or all were zeros
    moved: Amount | None = None
    clip: Clip | None = None  # None: not watched
    # digest of the watched step's operators in order, with types, shapes and strides; None: not watched
    step_form: str | None = None


class MicroBatches(ArmRecord):
    """Digests of the micro-batches of consecutive steps: one list per step, one digest per micro-batch, in order."""

    record: Literal["micro_batches"] = "micro_batches"
    key: ClassVar = ("arm", "replica", "first_step")
    first_step: Count
    digests: list[list[str]]


class RankSteps(ArmRecord):
    """The work of one rank in every step of one execution. Judges of data-parallel training read these records."""

    record: Literal["rank_steps"] = "rank_steps"
    parameters: list[str]  # digest of all trainable parameters before the first step, and after each step
    rows: list[list[str]]  # for each step: a digest of every row of its batch, in order
    collectives: list[Count]  # for each step: the number of collectives that the host began, in all process groups
    names: dict[str, Count]  # the collectives of the last step with any, by torch's flight recorder; empty: not known
    parts: Count = 0  # parameters that are sharded: no other rank holds this rank's elements
    # by category: the number of elements that this rank held at the end, and the total number
    held: dict[str, tuple[Count, Count]] = Field(default_factory=dict)
    # digests of the state of each generator that the step can reach, by name: before the first step, and after each.
    # Only the first digest if no step advanced the generator; no digest if a step created or rebound the generator.
    # None: older evidence
    generators: dict[str, list[str]] | None = None


class TensorReduction(Record):
    """A gradient reduced on the device. `max_abs_difference` is from the baseline arm's gradient, if there is one."""

    name: str
    digest: str
    elements: Count
    max_abs: Amount
    max_abs_difference: Amount | None = None
    baseline_digest: str | None = None
    baseline_max_abs: Amount | None = None
    sketch: Sketch | None = None  # None: not requested, or no floating-point numbers


class GroupNorm(Record):
    """L2 norm of one clipping group: `before` clipping, as the system reports; `after`, as the harness measures."""

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
    without: list[str] = Field(default_factory=list)  # trainable tensors that no gradient reached in this step
    # gradients as the backward pass left them, if either arm changed one before its step ended; None: neither arm did,
    # or one arm could not be watched
    made: list[TensorReduction] | None = None
    made_norm: Amount | None = None  # L2 norm of all gradients in `made`, for this arm; None: not seen
    written: list[str] | None = None  # gradients that the arm's optimizer wrote into; None: not seen


class StepReading(Record):
    """The largest error of one quantity in one step, over its tensors or groups. `ComparedStep` defines the error."""

    quantity: Literal["loss", "norms", "gradients", "exp_avg", "exp_avg_sq", "parameters"]
    tensors: Count
    error: Amount
    tensor: str  # the tensor or group with that error
    yardstick: Amount | None = None  # largest error of the yardstick arm in this quantity; None: an update has none


class ComparedStep(ArmRecord):
    """Errors of a candidate's step against a reference's step that starts from the same state as the candidate's.

    Errors are relative. For loss, norms and gradients, the L2 norm of the difference is divided by the reference's L2
    norm. For moments and parameters, each element's difference is divided by the same update computed from absolute
    values of its terms.
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
    clipped_tensors: Count | None = None  # read from the clip kernels' own arguments


class Launched(Record):
    """The launches of one graph that did equal work: a launch's device activities by type, and its kernels by name."""

    launches: Count
    by_type: dict[str, Count]  # kernel, memcpy, memset
    kernels: dict[str, Count]  # named as in `GraphNodes` if the kernel is the same


class OutsideWork(Record):
    """Device activities of one name that a step started outside of every graph launch."""

    name: str
    count: Count
    seconds: Amount


class DeviceWork(Record):
    """Device work that the profiler saw in some steps that were expected to be replays of graphs."""

    steps: Count
    launched: list[Launched]
    launched_seconds: Amount
    outside_kernel_seconds: Amount  # of kernels that a step launched outside graphs; copies of a batch do not count
    after_kernel_seconds: Amount = 0.0  # of kernels launched after the step; older evidence adds them to the line above
    outside: list[OutsideWork]  # kernels, copies and fills by name, the longest first


class StepWatch(Record):
    """ATen operations that reached the dispatcher in each step of the series, except in steps that captured."""

    steps: Count
    fewest_operations: Count  # in one step
    most_operations: Count  # in one step
    busiest_step: Count  # the first step with `most_operations`
    fewest_replayed: Count | None = None  # within a replay of a recorded step; None: older evidence
    most_after: Count = 0  # additional operations after a step; older evidence counts them in `most_operations`


class HostNumber(Record):
    """A Python number that plain steps keep changing and that no replay changes. name: the path to the number.

    read: how and where the step uses the number, except to count it up; None if the step does not use it.
    """

    name: str
    read: str | None


LOSS_OUTPUT = "loss"  # among the outputs of a step, next to `parameters <name>`


class GhostReplay(Record):
    """Results of testing a captured step without its replays, and the replays without the step, after the arm's end.

    The outputs of a step are its loss and the trainable parameters. None means that the harness did not test this.
    """

    replays: Count  # replays in the last step, by torch's replay method or of recorded steps
    failure: str | None = None  # what ended the test
    moves: bool | None = None  # a step on another batch changed parameters
    moves_alone: bool | None = None  # repeating the replays without a step kept changing parameters
    alone_reads: bool | None = None  # after a step on another batch, the replays alone gave other parameters
    # without its replays, a step did not change parameters, and its loss was the previous step's loss
    stays: bool | None = None
    # if `stays` is not True, or `alone_reads` is False: an output of the step depends on its batch; None: all steps had
    # the same batch
    reads: bool | None = None
    # in the same test: outputs that repeat in bits, depend on the batch, and are the same without the replays
    outside: Count = 0
    named: list[str] = Field(default_factory=list)  # names of the first few outputs that `outside` counts
    unsure: Count = 0  # likewise: outputs computed anew without the replays that do not repeat in bits
    # if all steps had the same batch: number of parameters, if all are the same without the replays, though their
    # gradients differ
    alike: Count = 0


class CaptureEvidence(ArmRecord):
    """What the system reports about its capture, and what the harness itself saw of it."""

    record: Literal["capture"] = "capture"
    mechanism: Literal["cuda_graph", "traced"] | None
    requested: bool
    captured: bool
    failure: str | None  # why the system captured nothing, in its own words
    captures: Count
    warmup_steps: Count
    replays: Count  # as the system counts them
    uncaptured_steps: Count
    nodes: list[GraphNodes]
    recorded_operations: Count  # traced: ATen operations recorded
    # traced: the body ran under fake tensors without a host sync; None: not known for all operators
    fake_pass_clean: bool | None
    moved_buffers: list[str]  # static buffers whose address changed, by name
    static_buffers: Count
    observed_steps: Count  # steps that the harness watched
    observed_graph_launches: Count | None  # cudaGraphLaunch calls that the profiler saw in the observed steps
    # traced: operations that a dispatch mode saw in the observed steps' replays; older evidence counts whole steps
    observed_replayed_operations: Count | None
    device_work: DeviceWork | None = None  # None: the profiler did not watch replays
    every_step: StepWatch | None = None  # None: the series was not watched step by step
    # the profiler saw a host sync that was planted after the watched steps; None: no profiler, or older evidence
    profiler_sees_planted: bool | None = None
    # paths of host values that the captured step changes and no replay changes again; [] in older evidence
    host_changes: list[str] = Field(default_factory=list)
    host_numbers: list[HostNumber] | None = None  # None: the step makes its capture itself, or older evidence
    # traced: places where the recorded step asked whether it is being captured; [] in older evidence
    asked_whether_captured: list[str] = Field(default_factory=list)
    # traced: operators that fake tensors do not support, so that their host syncs are unknown; [] in older evidence
    unseen_operators: list[str] = Field(default_factory=list)
    # traced: places where the step called compiled code, which was recorded uncompiled; [] in older evidence
    as_written: list[str] = Field(default_factory=list)
    warm_steps: Count = 0  # plain steps before the capture, not part of `uncaptured_steps`; 0 in older evidence
    ghost: GhostReplay | None = None  # None: not tested, or older evidence


class SyncPlace(Record):
    file: str
    line: Count
    operation: str
    count: Count


class DetectorReading(Record):
    """One detector's count of host syncs over `steps` steps, and whether the detector sees a planted sync."""

    detector: Literal["dispatch_mode", "fake_pass", "profiler", "sync_debug_mode", "waiting_calls"]
    steps: Count
    count: Count
    places: list[SyncPlace]
    sees_planted: bool
    first_step: Count | None = None  # of a series: the first step with a host sync
    most: Count | None = None  # of a series: the most host syncs in one step; None: not recorded
    busiest_step: Count | None = None  # the first step with `most` host syncs


class OnAGpu(Record):
    """How a step would behave on a GPU, predicted on a CPU: findings with source lines. No verdict reads them."""

    copies: list[str]  # copies of tensors or Python numbers from host to device, which no capture can contain
    changes: list[str]  # changes of host tensors, which no replay repeats
    unknown: list[str]  # copies to the device of values that may already be on it
    unrepeated: list[str]  # operators whose results do not repeat in bits on CUDA
    of_cpu: list[str]  # values that torch's optimizer reads on a CPU, but not on a GPU if it is `capturable`
    failure: str | None = None  # why nothing could be foreseen


class HostSyncEvidence(ArmRecord):
    record: Literal["host_syncs"] = "host_syncs"
    layers: Count
    replayed: bool  # the observed steps were replays of a capture
    readings: list[DetectorReading]
    # over all judged steps; empty: these steps were not watched
    every_step: list[DetectorReading] = Field(default_factory=list)
    fake_tensors_error: str | None = None  # why the step did not run under fake tensors; None: it did, or was not tried
    # None: the arm requests no capture, or was executed on a GPU, or older evidence
    on_a_gpu: OnAGpu | None = None


class Saved(ArmRecord):
    """An arm's training was saved. The `ArmEnd` of this execution has the state at the time of saving."""

    record: Literal["saved"] = "saved"
    steps: Count  # steps before the save
    process: Count  # the number of the process that saved
    files: Count  # files of the checkpoint, counted after the process had ended its threads
    bytes: Count
    steps_after: Count | None = None  # steps of this process after the save, which no series has; None: not recorded


class Loaded(ArmRecord):
    """An arm's training was loaded from a checkpoint. Steps before the load are not in the series."""

    record: Literal["loaded"] = "loaded"
    process: Count  # the number of the process that loaded
    steps_before: Count  # steps of this process before the load
    trainable_before: str  # digest of the trainable parameters before the load
    trainable_after: str
    after: State  # state right after the load


class Evaluated(ArmRecord):
    """One evaluation between two steps, with digests of the state before and after the evaluation, by category."""

    record: Literal["evaluated"] = "evaluated"
    key: ClassVar = ("arm", "replica", "steps")
    steps: Count  # steps before the evaluation
    values: dict[str, Real]  # numbers that the evaluation returned, by name
    before: dict[str, str]
    after: dict[str, str]
    changed: list[str]  # `category name` of tensors that existed before the evaluation and changed


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

    Allocator figures are torch's own statistics. Device figures are samples of the memory that the driver reports as
    used, minus the memory used before this process began to use the device. None means that the driver was not read.
    """

    allocated_bytes: Count
    reserved_bytes: Count
    device_bytes: Count | None
    outside_bytes: Count | None  # device memory in use outside torch's allocator at one moment
    samples: Count  # number of device samples


class PeakMemoryEvidence(ArmRecord):
    record: Literal["peak_memory"] = "peak_memory"
    opening: MemoryPeak
    steps: MemoryPeak  # warm-up and capture included
    resets: Count  # resets of torch's peak statistics by user code; the peaks include the values before each reset
    lost_peaks: Count  # times that the statistics fell without a seen reset, so that a peak may have been higher
    foreign_processes: Count | None  # largest number of other processes on the device; None: not known
    allocator: str  # torch's backend
    allocator_settings: str  # from the environment


class ReplayBlock(Record):
    """Consecutive steps of a long run: digests to compare with the other arm's block, the time, and the memory used."""

    first_step: Count
    steps: Count
    losses: str  # digest of every step's loss, in order
    batches: str  # digest of every step's batch, in order
    first_non_finite: Count | None  # step of the first loss that is NaN or infinite
    seconds: Amount  # between two device synchronizations, including the harness's recording of each step
    yardstick_seconds: Amount  # time of a fixed piece of work right after the block
    allocated_bytes: Count | None  # after the block; None: no CUDA
    reserved_bytes: Count | None


class ReplayRound(Record):
    """Seconds per step of four blocks that were timed after the last step, in the order old, fresh, fresh, old."""

    old: tuple[Amount, Amount]  # first and last block: the long run's own arm
    fresh: tuple[Amount, Amount]  # second and third block: the arm opened and captured anew


class LongReplayEvidence(ArmRecord):
    """A long run in blocks of `every` steps. The arm's series has one row for each block: the block's last step."""

    record: Literal["long_replay"] = "long_replay"
    every: Count
    distinct_batches: Count  # among all steps
    blocks: list[ReplayBlock]
    # the arm in turns with a copy opened and captured after the last step; None: a baseline, or older evidence
    rounds: list[ReplayRound] | None = None
    no_rounds: str | None = None  # why a fresh arm could not be opened next to the old one
    ended: str | None = None  # what the trainer raised after its last step; None: it made all steps
