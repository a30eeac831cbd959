"""Define the records that a worker writes of one arm: start and end, gradients, capture, host syncs, memory."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from harness.evidence.base import ArmRecord, Record, Scalar
from harness.numbers import Amount, Count, Real

CAPTURES_ITSELF = "captures_itself"  # the fact of an arm whose step makes the capture that was asked for
RESUMES = "resumes"  # the fact of an arm whose step function has `save` and `load`
FROZEN = "frozen"  # begins the names of frozen parameters among forms
NOT_FINITE = "!"  # ends the digest of a tensor that holds NaN or infinity


# of a tensor's real numbers: their type's epsilon, the L2 norm, and sums under four fixed sequences of signs
Sketch = tuple[Amount, Amount, Real, Real, Real, Real]


class State(Record):
    """What training may change, as digests by category and name; `tensors` is how many there are."""

    digests: dict[str, dict[str, str]]
    tensors: Count
    # by `category name`: values of single numbers, such as counters; None: not recorded
    numbers: dict[str, float] | None = None
    # at the start, by `category name`: data types and shapes, as `float32 [4, 2]`; None: not recorded
    forms: dict[str, str] | None = None
    # at the end: bytes of optimizers' tensors of several elements, by their data type; None: not recorded
    optimizer_bytes: dict[str, Count] | None = None


class EndDifference(Record):
    """How far parameters and buffers lie from those that an earlier execution of the same run ended with."""

    arm: str
    replica: Count
    tensors: Count  # parameters compared: of one name and shape
    largest: Amount | None  # largest absolute difference; None where nothing could be compared
    tensor: str | None  # where it is
    buffers: Count | None = None  # floating-point ones compared, likewise; None: not recorded
    # largest difference of one, over its largest element in that execution; None where nothing could be compared
    buffers_relative: Amount | None = None
    buffer: str | None = None  # where it is


class MovedApart(Record):
    """How otherwise an execution moved tensors, from its start to its end, than the first one of another arm.

    tensors: by `category name` three L2 norms: of the difference between the two movements, of the other arm's
    movement, and of the tensor at this execution's end. A tensor that came with the first step was moved there from 0.
    An optimizer's is there where it has a parameter's shape, with its data type where that is not float32.
    """

    arm: str
    tensors: dict[str, tuple[Amount, Amount, Amount]]
    uncompared: list[str]  # that the other arm has not, or in another shape, or that hold no floating-point numbers
    # of the other arm's, that this one has not, or in another shape; None: not recorded
    missing: list[str] | None = None


class Draws(Record):
    """Names the operators that drew random numbers in one step, with the shapes they drew for, in their order."""

    step: Count  # the one that was watched
    operators: list[str]  # that the host ran in it; those of a graph are in its capture
    captured: list[list[str]]  # of each capture until the arm's end
    generators: dict[str, str]  # of the process's generators that the step moved, digests after it


# What a loose tensor that the steps made is to the training. `state`: a later step reads it, or something that no
# operator shows changes it. `table`: a later step reads it, and none changed it. `derived`: nothing reads it, and it
# is made of parameters alone, as an average is. `log`: nothing reads it, and it is made of batches and single numbers,
# such as losses. `mixed`: nothing reads it, and it is made of parameters and of batches, as a sum of gradients is.
# `left`: what the last step left behind, or what was made between two steps. `unseen`: nothing reads it, and no step
# was followed that shows what it is made of.
Role = Literal["state", "table", "derived", "log", "mixed", "left", "unseen"]
COMPARED: tuple[Role, ...] = ("state", "table", "derived")  # those whose values a comparison of states reads


class Loose(Record):
    """Names loose tensors at the end that were not there at the start, with their roles."""

    # None: the steps could not be followed, as `failure` says, or were timed, and the roles are those of another arm
    roles: dict[str, Role] | None
    unread: dict[str, str]  # digests of all others
    failure: str | None = None
    lent: bool = False  # another arm's roles count


class ArmStart(ArmRecord):
    record: Literal["arm_start"] = "arm_start"
    trainable_digest: str
    frozen_digest: str
    trainable_tensors: Count
    facts: dict[str, Scalar]  # layers, device, dtype, parameters, text digest, … as the system states them
    state: State | None = None  # None: recorded before states were
    trainable_names: list[str] | None = None  # None: recorded before they were
    trainable_dtypes: list[str] | None = None  # data types of the trainable tensors; None: likewise
    rounded_digest: str | None = None  # of the trainable tensors, rounded to the data type that the plan names
    sketches: dict[str, Sketch] | None = None  # of the parameters, by `category name`; None: not asked


class Clip(Record):
    """What was seen, in some watched steps, of bounds on gradients that are made of gradients."""

    seen: bool | None  # None: it cannot be said, as of compiled code, or where the host reads such numbers
    acted: bool  # some gradient was changed by it
    operator: str = ""  # which saturates


class ArmEnd(ArmRecord):
    record: Literal["arm_end"] = "arm_end"
    trainable_digest: str
    frozen_digest: str
    skipped_steps: Count
    steps_called: Count
    capture_attempts: Count | None = None  # that the harness saw begin until here; None: not watched
    capture_errors: list[str] | None = None  # what ended those that failed, also if it was caught; None: not watched
    state: State | None = None  # as in the start
    differences: list[EndDifference] | None = None
    moved_apart: list[MovedApart] | None = None  # None: no claim reads it
    loose: Loose | None = None  # None: the steps were not watched for it, or recorded before they were
    # loose tensors that came with the first step and that no later one changed; None: not recorded, as it is no more
    still: list[str] | None = None
    # loose tensors that came with the first step and hold a NaN that they did not hold then; None: not recorded
    spoiled: list[str] | None = None
    input_names: list[str] | None = None  # of what the last step read; None: not shown, or recorded before they were
    input_shapes: Count | None = None  # how many different shapes and types the steps' inputs had; None: likewise
    # by how much optimizers' own counters went up, each number once; None: not recorded
    updates: list[Count] | None = None
    # that compute: in its captures, or in one step of an arm next to which one is captured; None: not watched
    operators: list[str] | None = None
    draws: Draws | None = None  # None: no step was watched, or recorded before they were
    sketches: dict[str, Sketch] | None = None  # of all floating-point state, by `category name`; None: not asked
    # the largest sum, without their signs, of the terms of a watched step's loss; None: not watched
    loss_terms: Amount | None = None
    replays: Count | None = None  # of graphs and recorded steps, that the harness saw; None: not watched
    # how far the median trainable tensor moved, over its norm at the start; None: not recorded, or all began as zeros
    moved: Amount | None = None
    clip: Clip | None = None  # None: not watched
    # digest of the watched step's operators in their order, with types, shapes and strides; None: as of `operators`
    step_form: str | None = None


class MicroBatches(ArmRecord):
    """Digests of the micro-batches of some steps in a row: a list a step, an entry a micro-batch in its order."""

    record: Literal["micro_batches"] = "micro_batches"
    key: ClassVar = ("arm", "replica", "first_step")
    first_step: Count
    digests: list[list[str]]


class RankSteps(ArmRecord):
    """What one rank did in every step of one execution: what data-parallel training is judged by."""

    record: Literal["rank_steps"] = "rank_steps"
    parameters: list[str]  # digest of all trainable parameters before the first step, and after each
    rows: list[list[str]]  # of each step: a digest of every row of the batch that it read, in their order
    collectives: list[Count]  # of each step: that the host began, in all process groups
    names: dict[str, Count]  # of the last step with any: which ones, by torch's flight recorder; empty: not known
    parts: Count = 0  # parameters whose elements here no other rank holds
    # by category: how many elements this rank held at the end, and how many there are
    held: dict[str, tuple[Count, Count]] = Field(default_factory=dict)
    # by the name of each generator that the step reaches: a digest of its state before the first step, and after each;
    # the first digest alone where no step moved it, none where a step made it or bound it anew. None: recorded before
    # generators were
    generators: dict[str, list[str]] | None = None


class TensorReduction(Record):
    """A gradient reduced on the device. `max_abs_difference` is against the baseline arm, if there is one."""

    name: str
    digest: str
    elements: Count
    max_abs: Amount
    max_abs_difference: Amount | None = None
    baseline_digest: str | None = None
    baseline_max_abs: Amount | None = None
    sketch: Sketch | None = None  # None: not asked, or no floating-point numbers


class GroupNorm(Record):
    """L2 norm of one clipping group: as the system reports it before clipping, as the harness measures it after."""

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
    # as the backward pass left them, where either arm changed one before its step ended; None: neither did, or that
    # was not seen of one
    made: list[TensorReduction] | None = None
    made_norm: Amount | None = None  # L2 norm of all of these, of this arm; None: not seen
    written: list[str] | None = None  # that the arm's optimizer wrote into; None: not seen


class StepReading(Record):
    """The largest error of one quantity in one step, over its tensors (or groups); relative, as its docstring says."""

    quantity: Literal["loss", "norms", "gradients", "exp_avg", "exp_avg_sq", "parameters"]
    tensors: Count
    error: Amount
    tensor: str  # where the error is
    yardstick: Amount | None = None  # the yardstick's own largest error of it; None: an update has none


class ComparedStep(ArmRecord):
    """One step of the candidate against the reference's, both from the state that the candidate had before it.

    Relative errors: of loss, norms and gradients in the L2 norm, over that of the reference; of moments and
    parameters element by element, over what the same update makes of the terms' absolute values.
    """

    record: Literal["compared_step"] = "compared_step"
    key: ClassVar = ("arm", "replica", "step")
    reference: str
    yardstick: str
    step: Count
    readings: list[StepReading]


class GraphNodes(Record):
    """Census of one captured graph. `kernels` counts launches by demangled-enough name."""

    label: str
    by_type: dict[str, Count]
    kernels: dict[str, Count]
    device_to_host_copies: Count
    clipped_tensors: Count | None = None  # read from the clip kernels' own arguments


class Launched(Record):
    """Launches of one graph that did equal work: its device activities by type, and its kernels by name."""

    launches: Count
    by_type: dict[str, Count]  # kernel, memcpy, memset
    kernels: dict[str, Count]  # of one launch; under the census's name where that is the same kernel


class OutsideWork(Record):
    """Device activities of one name that a step began and no graph launched."""

    name: str
    count: Count
    seconds: Amount


class DeviceWork(Record):
    """What the device did in some steps that were to be replays, by the profiler."""

    steps: Count
    launched: list[Launched]
    launched_seconds: Amount
    outside_kernel_seconds: Amount  # of kernels that a step launched by itself; copies of a batch are no kernels
    after_kernel_seconds: Amount = 0.0  # of kernels launched after the step; before it was counted apart, in the others
    outside: list[OutsideWork]  # copies and fills too, by name, the longest first


class StepWatch(Record):
    """Every step of the series but those that captured: ATen operations that reached the dispatcher."""

    steps: Count
    fewest_operations: Count  # in a step
    most_operations: Count
    busiest_step: Count  # the first with the most
    fewest_replayed: Count | None = None  # within a replay of a recorded step; None: recorded before it was watched
    most_after: Count = 0  # more operations, after the step; before it was counted apart, among the others


class HostNumber(Record):
    """A Python number that the step changes again and again, and that no replay changes, by its path.

    read: what the step does with it besides counting, and where; None: nothing.
    """

    name: str
    read: str | None


LOSS_OUTPUT = "loss"  # among the outputs of a step, next to `parameters <name>`


class GhostReplay(Record):
    """The outputs of a captured step without its replays, and of its replays without the step, after the arm had ended.

    Outputs are the loss and the trainable parameters. None: the harness did not look.
    """

    replays: Count  # of the last step, that went through torch's own method or are recorded steps
    failure: str | None = None  # what ended the look
    moves: bool | None = None  # a step on another batch changed parameters
    moves_alone: bool | None = None  # the replays changed parameters without a step, and not the first ones alone
    alone_reads: bool | None = None  # and changed them otherwise on that other batch
    # without its replays a step left the parameters alone, and its loss was that of the step before
    stays: bool | None = None
    # where it did not stay: an output of the step depends on its batch; None: all steps had one batch
    reads: bool | None = None
    # where it did not stay: outputs that repeat in bits, depend on the batch, and are alike without the replays
    outside: Count = 0
    named: list[str] = Field(default_factory=list)  # of these, the first ones
    unsure: Count = 0  # likewise: outputs that the step gives anew without its replays, and that do not repeat
    # where all steps had one batch: parameters, if all are alike without the replays, which left other gradients
    alike: Count = 0


class CaptureEvidence(ArmRecord):
    """What the system says of its capture, and what the harness saw."""

    record: Literal["capture"] = "capture"
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
    # traced: the body ran under fake tensors without a host sync; None: it was not seen of all operators
    fake_pass_clean: bool | None
    moved_buffers: list[str]  # static buffers whose address changed, by name
    static_buffers: Count
    observed_steps: Count  # steps that the harness watched
    observed_graph_launches: Count | None  # cudaGraphLaunch calls seen in them (profiler)
    # traced: operations seen by a dispatch mode in them, within replays; in older evidence, the step's others, too
    observed_replayed_operations: Count | None
    device_work: DeviceWork | None = None  # None: the profiler did not watch replays
    every_step: StepWatch | None = None  # None: the series was not watched step by step
    # a sync planted after the watched steps; None: no profiler, or recorded before it was shown one
    profiler_sees_planted: bool | None = None
    # what the captured step changes on the host, which no replay does again, by its path; [] in older evidence
    host_changes: list[str] = Field(default_factory=list)
    host_numbers: list[HostNumber] | None = None  # None: of a capture that the step makes itself, or older evidence
    # traced: where the step asked, while it was recorded, whether it is captured; [] in older evidence
    asked_whether_captured: list[str] = Field(default_factory=list)
    # traced: operators that have no form for fake tensors, so that nothing says whether they wait; [] in older evidence
    unseen_operators: list[str] = Field(default_factory=list)
    # traced: where the step called compiled code, which was recorded as it is written; [] in older evidence
    as_written: list[str] = Field(default_factory=list)
    warm_steps: Count = 0  # plain steps before the capture, none of `uncaptured_steps`; 0 in older evidence
    ghost: GhostReplay | None = None  # None: no look was taken, or older evidence


class SyncPlace(Record):
    file: str
    line: Count
    operation: str
    count: Count


class DetectorReading(Record):
    """One detector's count of host syncs over `steps` steps, and whether it sees a planted sync."""

    detector: Literal["dispatch_mode", "fake_pass", "profiler", "sync_debug_mode", "waiting_calls"]
    steps: Count
    count: Count
    places: list[SyncPlace]
    sees_planted: bool
    first_step: Count | None = None  # of a series: the first step with a sync
    most: Count | None = None  # of a series: in one step; None: not recorded
    busiest_step: Count | None = None  # the first one with so many


class OnAGpu(Record):
    """Lists what a CPU foresees of a step on a GPU, each with its line; no verdict rests on it."""

    copies: list[str]  # of a tensor, or of Python's numbers, from the host to the device: no capture takes one
    changes: list[str]  # of tensors on the host, which no replay does again
    unknown: list[str]  # copies to the device of what may lie there already
    unrepeated: list[str]  # operators that repeat no bits on CUDA
    of_cpu: list[str]  # where torch's optimizer reads a value on a CPU, and none on a GPU if it is `capturable`
    failure: str | None = None  # why nothing could be foreseen


class HostSyncEvidence(ArmRecord):
    record: Literal["host_syncs"] = "host_syncs"
    layers: Count
    replayed: bool  # the observed steps were replays of a capture
    readings: list[DetectorReading]
    # over the steps that are judged; empty: they were not watched
    every_step: list[DetectorReading] = Field(default_factory=list)
    fake_tensors_error: str | None = None  # what kept it from reading; a step that fails itself has no evidence
    # None: the arm asks for no capture, was executed on a GPU, or in older evidence
    on_a_gpu: OnAGpu | None = None


class Saved(ArmRecord):
    """An arm's training was saved; the state that it had then is in the end of the same execution."""

    record: Literal["saved"] = "saved"
    steps: Count  # that were taken before
    process: Count  # the number of the process that saved
    files: Count  # of the checkpoint, when the process had ended its threads
    bytes: Count
    steps_after: Count | None = None  # that the process took then, which no series has; None: not recorded


class Loaded(ArmRecord):
    """An arm's training was loaded, after steps of which none is in the series."""

    record: Literal["loaded"] = "loaded"
    process: Count  # the number of the process that loaded
    steps_before: Count  # that this process had taken
    trainable_before: str  # digest of the trainable parameters before it loaded
    trainable_after: str
    after: State  # right after it loaded


class Evaluated(ArmRecord):
    """One evaluation between two steps, and the state before and after it: a digest by category."""

    record: Literal["evaluated"] = "evaluated"
    key: ClassVar = ("arm", "replica", "steps")
    steps: Count  # that were taken before
    values: dict[str, Real]  # what it returned, by name; empty where that was nothing
    before: dict[str, str]
    after: dict[str, str]
    changed: list[str]  # tensors of another digest, by category and name; of names that were there before


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
    """The most that one stretch of an arm's process held at one time.

    Of torch's allocator by its own statistics; of the device by samples of what the driver has in use, less what it
    had before the process used it. None: the driver was not read.
    """

    allocated_bytes: Count
    reserved_bytes: Count
    device_bytes: Count | None
    outside_bytes: Count | None  # of the device besides what torch's allocator held at the same moment
    samples: Count  # of the device


class PeakMemoryEvidence(ArmRecord):
    record: Literal["peak_memory"] = "peak_memory"
    opening: MemoryPeak
    steps: MemoryPeak  # warm-up and capture included
    resets: Count  # of torch's peak statistics by others than the harness: what they read before is in the peaks
    lost_peaks: Count  # times the statistics fell and no reset was seen: a peak may have been higher
    foreign_processes: Count | None  # most on the device besides this one; None: not known
    allocator: str  # torch's backend
    allocator_settings: str  # of the environment


class ReplayBlock(Record):
    """Steps that were made one after the other: what they had in common with the other arm's, and what they cost."""

    first_step: Count
    steps: Count
    losses: str  # digest of every step's loss, in order
    batches: str  # of every step's batch
    first_non_finite: Count | None  # step of the first loss that is NaN or infinite
    seconds: Amount  # between two device synchronizations, with what the harness keeps of each step
    yardstick_seconds: Amount  # of a fixed piece of work, right after it
    allocated_bytes: Count | None  # after the block; None: no CUDA
    reserved_bytes: Count | None


class ReplayRound(Record):
    """Seconds a step of four blocks after the last step, in this order: the old run, a fresh one twice, the old run."""

    old: tuple[Amount, Amount]
    fresh: tuple[Amount, Amount]


class LongReplayEvidence(ArmRecord):
    """A long run in blocks. The arm's series has a row for the last step of each."""

    record: Literal["long_replay"] = "long_replay"
    every: Count
    distinct_batches: Count  # of all steps
    blocks: list[ReplayBlock]
    # the arm in turns with one that was opened and captured after the last step; None: a baseline, or older evidence
    rounds: list[ReplayRound] | None = None
    no_rounds: str | None = None  # why a fresh arm could not be opened next to the old one
    ended: str | None = None  # what the trainer raised after its last step; None: it made all steps
