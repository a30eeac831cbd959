"""Every reason code a verdict may carry: one constant, one status and one line of explanation each.

A code has exactly one status, so a judge names the reason and the status follows. Codes are generic: they name
what was seen, never a planted fault, and they are stable across versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from harness.errors import KindError
from harness.judge.verdict import Status
from harness.kinds import BUILT_IN, Kind, kinds


@dataclass(frozen=True)
class Reason:
    """What a code means; `status` is the only status it may come with."""

    code: str
    status: Status
    explanation: str


REASONS: Final[dict[str, Reason]] = {}  # those of the harness; `reason_of` knows those of packages, too


def _code(code: str, status: Status, explanation: str) -> str:
    REASONS[code] = Reason(code, status, explanation)
    return code


def _passes(code: str, explanation: str) -> str:
    return _code(code, Status.PASS, explanation)


def _fails(code: str, explanation: str) -> str:
    return _code(code, Status.FAIL, explanation)


def _undecided(code: str, explanation: str) -> str:
    return _code(code, Status.INCONCLUSIVE, explanation)


def _not_run(code: str, explanation: str) -> str:
    return _code(code, Status.NOT_RUN, explanation)


def _error(code: str, explanation: str) -> str:
    return _code(code, Status.ERROR, explanation)


HELD = _passes("held", "Everything the claim demands was seen, over the denominators given.")

# --- what two arms, or two runs of one arm, must share before their numbers mean anything -------------------
NON_FINITE = _fails("non_finite", "A compared number is NaN or infinite. It counts even when both arms have it.")
NON_FINITE_END = _fails("non_finite_end", "A parameter or another tensor that training changes ended NaN or infinite.")
UNEQUAL_START = _fails("unequal_start", "The compared arms start from different parameters, buffers or generators.")
UNEQUAL_LENGTHS = _fails("unequal_lengths", "The compared arms recorded different numbers of steps.")
UNEQUAL_BATCHES = _fails("unequal_batches", "The compared arms read different batches at one step or more.")
UNEQUAL_TOKENS = _fails(
    "unequal_tokens",
    "The compared arms worked on different numbers of tokens: elements of the input that is called `tokens`, or, "
    "without one, batch size times sequence length.",
)

# --- differences ---------------------------------------------------------------------------------------------
DIFFERS = _fails("differs", "Equality in bits was demanded, and a value differs.")
END_DIFFERS = _fails(
    "end_differs", "Equality in bits was demanded; the losses agree, and the state at the end does not."
)
ENDS_APART = _fails(
    "ends_apart", "The losses agree within the bound, and a tensor is moved otherwise than the contract allows."
)
OTHER_RANDOM_NUMBERS = _undecided(
    "other_random_numbers",
    "Numbers of the arms differ, and so do the random numbers that they draw, which no bound on rounding covers.",
)
HOST_VALUE_UNEXPLAINED = _undecided(
    "host_value_unexplained",
    "A Python number that no replay changes is read by the step, or ends apart, and the contract does not say why that "
    "is right.",
)
BASELINE_NOT_REPEATABLE = _undecided(
    "baseline_not_repeatable",
    "The baseline differs from its own repetition: in its start or batches, or in bits where a claim in bits differs.",
)
OPTIMIZATION_OFF = _undecided(
    "optimization_off", "The optimized arm runs the plain one's operators on the same tensors, with equal bits."
)
OTHER_PRECISION = _undecided(
    "other_precision",
    "Numbers of the arms differ, and the candidate's optimizer keeps its state in fewer bits than its parameters.",
)
CLIP_UNSEEN = _undecided(
    "clip_unseen", "One arm bounds its gradients and the other does not, and no gradient reached the bound."
)
END_STATE_UNRECORDED = _undecided(
    "end_state_unrecorded", "The evidence was recorded before the state at the end was; run it again."
)
EXCEEDS_TOLERANCE = _fails("exceeds_tolerance", "A difference is larger than the contract's bound.")
BEYOND_NOISE = _fails(
    "beyond_noise", "The candidate's runs lie further from the baseline's than its noise explains, or scatter more."
)
FROZEN_CHANGED = _fails("frozen_changed", "Tensors that must stay frozen changed during the run.")
CLIPPED_NORM_EXCEEDED = _fails("clipped_norm_exceeded", "After clipping, a group's norm is above the threshold.")
TENSORS_MISSING = _fails(
    "tensors_missing", "Some trainable tensors were not compared, or have no recorded gradient to compare."
)

# --- guards: a comparison that shows nothing -------------------------------------------------------------------
VACUOUS_STEPS = _fails("vacuous_steps", "Fewer steps were recorded than the claim needs, perhaps none.")
VACUOUS_NOTHING_COMPARED = _fails("vacuous_nothing_compared", "A denominator is zero: nothing was compared.")
VACUOUS_PARAMETERS_UNCHANGED = _fails(
    "vacuous_parameters_unchanged", "The trainable parameters ended as they began: nothing was trained."
)
VACUOUS_SKIPPED_STEP = _fails("vacuous_skipped_step", "An update was left out, so the steps are not all training.")
VACUOUS_BATCHES_REPEAT = _fails(
    "vacuous_batches_repeat", "Fewer distinct batches than the guard demands, or the same rows over and over."
)
VACUOUS_CLIP_INACTIVE = _fails("vacuous_clip_inactive", "The clip was active in too few steps, so it was not tested.")
VACUOUS_TRAINING_EFFECT = _fails(
    "vacuous_training_effect", "The loss is not below the untrained control's loss by the demanded amount."
)
TRAINED_TOO_LITTLE = _undecided(
    "trained_too_little",
    "Parameters moved less than the floor, and the loss did not fall clearly below an untrained control's.",
)
VACUOUS_CONSTANT_LOSS = _fails(
    "vacuous_constant_loss", "The loss never moved: it is not that of a model that trains on changing batches."
)
VACUOUS_CONSTANT_METRIC = _fails(
    "vacuous_constant_metric", "The compared metric never moved: a comparison of it shows nothing of the training."
)
VACUOUS_CONTROL_DIFFERS = _fails(
    "vacuous_control_differs",
    "At step 0, from one start on one batch, the untrained control has another loss than the candidate.",
)
VACUOUS_BASELINE_CAPTURED = _fails(
    "vacuous_baseline_captured",
    "An arm that is declared uncaptured captured, so nothing was compared with an uncaptured step.",
)
VACUOUS_GRADIENTS_ZERO = _fails("vacuous_gradients_zero", "Every compared gradient is zero.")
VACUOUS_PRECISION = _fails(
    "vacuous_precision", "The compared arms compute in other precisions than the comparison needs, so it shows nothing."
)
VACUOUS_PARAMETER_DTYPE = _fails(
    "vacuous_parameter_dtype", "An arm's trainable parameters have another data type than the comparison needs."
)
VACUOUS_CONTROL_NO_SYNC = _fails("vacuous_control_no_sync", "The synchronizing control showed no host sync.")
VACUOUS_DETECTOR_BLIND = _fails("vacuous_detector_blind", "A sync detector did not see the planted sync.")
VACUOUS_NO_KERNELS = _fails("vacuous_no_kernels", "A list of kernels that must not be empty is empty.")
VACUOUS_PEER = _fails(
    "vacuous_peer",
    "No error within the tolerance can exceed the peer's by the given factor, so the peer bounds nothing.",
)
VACUOUS_NO_BUFFERS = _fails(
    "vacuous_no_buffers", "No static buffer was watched, so nothing shows that they keep their addresses."
)
VACUOUS_NO_MEMORY = _fails("vacuous_no_memory", "Every memory sample is zero bytes.")
VACUOUS_MEMORY_NOT_FILLED = _fails(
    "vacuous_memory_not_filled", "Device memory was not full, so a late allocation could not have failed."
)

# --- between two steps: going on from a checkpoint, evaluation ------------------------------------------------
NOT_RESTORED = _fails(
    "not_restored", "A resumed training is another, and right after the load its state was not the one that was saved."
)
NOTHING_LOADED = _fails("nothing_loaded", "The load left the parameters as they were before it.")
VACUOUS_NOTHING_TO_LOAD = _fails(
    "vacuous_nothing_to_load", "Before the load the parameters were already those that were saved: it shows nothing."
)
VACUOUS_NOTHING_SAVED = _fails("vacuous_nothing_saved", "The checkpoint is empty: what was loaded came from elsewhere.")
VACUOUS_ONE_PROCESS = _fails("vacuous_one_process", "The process that loaded is the one that saved.")
EVALUATION_CHANGED_STATE = _fails(
    "evaluation_changed_state", "After an evaluation, state that training reads was not as it was before."
)
EVALUATION_NOT_FINITE = _fails("evaluation_not_finite", "An evaluation returned NaN or infinity.")
EVALUATIONS_DIFFER = _fails(
    "evaluations_differ", "Most evaluations returned other numbers than the plain arm's, beyond the bound."
)
VACUOUS_EVALUATIONS = _fails(
    "vacuous_evaluations", "Fewer evaluations than demanded returned a number that the one before did not return."
)

# --- capture ---------------------------------------------------------------------------------------------------
NOT_CAPTURED = _fails("not_captured", "The step was not captured, or a capture failed.")
CAPTURE_NOT_BEGUN = _fails("capture_not_begun", "A capture was asked for, and none was begun.")
EMPTY_CAPTURE = _fails("empty_capture", "A capture succeeded and holds no operation.")
FORBIDDEN_NODE = _fails("forbidden_node", "The graph holds a host node, an allocation or a device-to-host copy.")
SYNC_IN_CAPTURE = _fails("sync_in_capture", "The step waits for the device inside what was captured.")
WRONG_CAPTURE_COUNT = _fails("wrong_capture_count", "The number of captures is not the demanded one.")
UNCAPTURED_STEPS = _fails("uncaptured_steps", "Some steps ran outside the capture.")
LOST_STEP = _fails("lost_step", "Fewer replays than steps: a captured step was recorded and never executed.")
EXTRA_STEP = _fails("extra_step", "More replays than steps: a step was executed more than once.")
LAUNCHES_DIFFER = _fails(
    "launches_differ", "The number of graph launches that the harness saw is not the number that the steps need."
)
LAUNCHED_OTHERWISE = _fails("launched_otherwise", "What ran under a graph launch is not what the counted graphs hold.")
WORK_OUTSIDE_GRAPHS = _fails(
    "work_outside_graphs", "A captured step did more work outside its graphs than the claim allows."
)
MOVED_BUFFER = _fails("moved_buffer", "A static buffer changed its address after capture.")
NODE_COUNT = _fails("node_count", "The number of captured nodes is outside the demanded bounds.")
KERNELS_PER_LAYER = _fails("kernels_per_layer", "Fewer kernels per layer than demanded.")
CLIPPED_TENSORS = _fails("clipped_tensors", "The captured clip covers another number of tensors than demanded.")
SKIPPED_STEPS = _fails("skipped_steps", "More updates were left out than allowed.")

VACUOUS_CAPTURED = _fails(
    "vacuous_captured", "The capture that was to fail succeeded, so nothing shows what happens when one fails."
)
FALLBACK_UNSAID = _fails("fallback_unsaid", "A capture failed, and the record does not say so, or not why.")
CAPTURE_ATTEMPTS = _fails("capture_attempts", "A capture was begun another number of times than demanded.")
CAPTURED_UNASKED = _fails("captured_unasked", "A capture was begun by an arm that asks for none.")

# --- settings that must make a difference ----------------------------------------------------------------------
LOSSES_EQUAL = _fails("losses_equal", "Losses that must differ are equal in bits at one step or more.")
BATCHES_EQUAL = _fails("batches_equal", "Arms that must read different batches read an equal one.")
START_EQUAL = _fails("start_equal", "Arms that must start from different parameters start from equal ones.")

# --- accumulation over micro-batches ---------------------------------------------------------------------------
MICRO_BATCH_COUNT = _fails("micro_batch_count", "A step read another number of micro-batches than demanded.")
MICRO_BATCHES_REPEAT = _fails("micro_batches_repeat", "A step read one micro-batch more than once.")
UPDATE_COUNT = _fails("update_count", "The optimizers did not update once in each step.")
DIFFERS_FROM_ONE_BATCH = _fails(
    "differs_from_one_batch",
    "Loss, norms or gradients of the micro-batches are not, within the bound, those of one batch of all of them.",
)
VACUOUS_ONE_BATCH = _fails(
    "vacuous_one_batch", "Micro-batches and one batch gave gradients of equal bits: it is one computation, made twice."
)
UPDATES_UNCOUNTED = _undecided("updates_uncounted", "No optimizer of the arm counts its updates.")

# --- ranks that train together ---------------------------------------------------------------------------------
RANKS_DIFFER = _fails("ranks_differ", "A rank's parameters differ from those of the other ranks after some step.")
RANK_BATCHES_EQUAL = _fails("rank_batches_equal", "Two ranks read the same row of a batch in one step.")
RANK_ROW_COUNT = _fails("rank_row_count", "A rank read another number of rows than its share of the batch.")
RANKS_END_APART = _fails(
    "ranks_end_apart", "The ranks' parameters end farther from those of one process than the contract allows."
)
COLLECTIVES_OUTSIDE_GRAPH = _fails(
    "collectives_outside_graph", "The host begins more collectives in a step than the contract allows."
)
COLLECTIVES_MISSING_IN_GRAPH = _fails(
    "collectives_missing_in_graph", "The captured graph holds fewer collectives than the contract demands."
)
SHARE_EXCEEDED = _fails(
    "share_exceeded", "A rank holds a larger share of the parameters, or of the optimizer's tensors, than allowed."
)
VACUOUS_NO_REPLICA = _fails(
    "vacuous_no_replica", "No parameter is in every rank, and the claim does not say which share a rank may hold."
)
VACUOUS_NO_COLLECTIVE = _fails(
    "vacuous_no_collective", "A rank began no collective at all: what the ranks did was not one training."
)

# --- several seeds ---------------------------------------------------------------------------------------------
WORSE = _fails("worse", "The candidate's metric is worse than the baseline's by more than the margin.")
VACUOUS_SEEDS_ALIKE = _fails(
    "vacuous_seeds_alike",
    "Two seeds gave the same series, or began alike and read the same: they are one measurement, counted twice.",
)
UNDECIDED_DIFFERENCE = _undecided(
    "undecided_difference", "The differences of the seeds neither prove nor refute that the margin is kept."
)
TOO_FEW_SEEDS = _undecided("too_few_seeds", "So few seeds cannot reach the demanded confidence, whatever they show.")

# --- host syncs, memory ----------------------------------------------------------------------------------------
SYNC_COUNT = _fails(
    "sync_count", "The candidate's number of waits for the device (host syncs) is not the demanded one."
)
CONTROL_SYNC_COUNT = _fails("control_sync_count", "The control arm's host syncs are not the demanded number.")
MEMORY_GROWS = _fails("memory_grows", "Memory grew after the warm-up by more than the bound.")
PEAK_MEMORY = _fails("peak_memory", "The arm held more device memory at one time than the bound.")
PEAK_RATIO = _fails(
    "peak_ratio", "The arm's peak of device memory is a larger multiple of the baseline's than allowed."
)
MEMORY_OUTSIDE_ALLOCATOR = _fails(
    "memory_outside_allocator", "The device held more beside torch's allocator than the bound, so a peak may be hidden."
)
PEAK_UNKNOWN = _undecided(
    "peak_unknown", "torch's peak statistics were set back unseen, so that a peak may have been higher than recorded."
)
DEVICE_MEMORY_UNSEEN = _undecided(
    "device_memory_unseen", "What the device itself had in use was not read, or others used the device meanwhile."
)

BASELINE_IDLE = _undecided(
    "baseline_idle", "The baseline waited while neither host nor device worked: something slowed it."
)
HOST_WAITED = _undecided(
    "host_waited",
    "The device works longer in a step of the baseline than the host takes to enqueue it, which may have waited.",
)

# --- kernels ---------------------------------------------------------------------------------------------------
PTX_TARGET_MISSING = _fails("ptx_target_missing", "A kernel's PTX has no `.target` line, or one that cannot be read.")
PTX_TARGET_MISMATCH = _fails("ptx_target_mismatch", "A kernel's PTX target does not fit the device.")
PTX_VERSION_UNSUPPORTED = _fails(
    "ptx_version_unsupported", "A kernel's PTX version is missing, newer than the driver, or older than its target."
)
DEVICE_UNREADABLE = _fails("device_unreadable", "A device is there and its compute capability cannot be read.")
DUPLICATE_KEY = _fails("duplicate_key", "Two different kernels are stored under one key.")
PREWARM_MISSING_KEY = _fails("prewarm_missing_key", "A run uses a kernel key that was not prewarmed.")
PREWARM_PTX_DIFFERS = _fails("prewarm_ptx_differs", "Prewarm and run have different PTX under one key.")
LATE_JIT = _fails("late_jit", "A kernel was compiled or loaded after prewarm.")
HANDLE_LATE = _fails("handle_late", "A library handle did not exist before the weights were uploaded.")
STEP_FAILED_WHEN_FULL = _fails("step_failed_when_full", "A step failed once device memory was full.")
UNWRITTEN_ELEMENTS = _fails("unwritten_elements", "A kernel left poisoned elements of its output unwritten.")
OVERWRITTEN_MEMORY = _fails("overwritten_memory", "A kernel wrote beside its outputs.")
WRONG_TYPE = _fails("wrong_type", "A kernel's output has another data type or shape than declared.")
VACUOUS_REFERENCE = _fails("vacuous_reference", "A reference is zero throughout: agreement with it shows nothing.")
EXCEEDS_PEER = _fails("exceeds_peer", "A kernel errs by more than the demanded multiple of its peer's error.")
PEER_MISSING = _undecided("peer_missing", "No peer's error stands beside a kernel's.")
NOT_REPEATABLE = _fails("not_repeatable", "The same kernel on the same input gave other bits the second time.")
DEMAND_UNMET = _fails("demand_unmet", "A compiled kernel's metadata or constant is not what is demanded.")

# --- throughput ------------------------------------------------------------------------------------------------
TOO_SLOW = _fails("too_slow", "The speed ratio is below the demanded one, with all that noise could have hidden.")
UNDECIDED_RATIO = _undecided("undecided_ratio", "The measured ratios neither prove nor refute the demanded one.")
CANDIDATE_STALLS = _undecided(
    "candidate_stalls",
    "The candidate's typical block proves the ratio, and the seconds of all its blocks do not: some take far longer.",
)
TOO_FEW_PROCESSES = _undecided(
    "too_few_processes", "So few processes cannot reach the demanded confidence, whatever they measure."
)
MEASUREMENTS_OVERLAP = _undecided(
    "measurements_overlap", "A second measurement began before the first was over, so that they share their noise."
)
LIMITS_EXCEEDED = _undecided("limits_exceeded", "Machine load, clocks or throttling were outside the limits.")
TELEMETRY_MISSING = _undecided("telemetry_missing", "No clocks, load or throttling were recorded during the timing.")

SLOWS_DOWN = _fails("slows_down", "Late steps take longer than early ones by more than the bound.")
UNDECIDED_SLOWDOWN = _undecided(
    "undecided_slowdown", "The step times are too noisy to tell whether late steps take longer than the bound allows."
)

# --- measured, not decided ---------------------------------------------------------------------------------------
CANDIDATE_NOT_CAPTURED = _undecided("candidate_not_captured", "An arm that must be captured for this claim was not.")
RANK_SHARE_UNSEEN = _undecided(
    "rank_share_unseen", "All ranks showed fewer rows than their share of the batch, in most steps."
)
GRADIENTS_UNDECIDED = _undecided(
    "gradients_undecided", "Most gradients of a step are so far below its largest that they could be rounding alone."
)
ENDS_UNDECIDED = _undecided("ends_undecided", "A rounding at the start moves every parameter as far as training does.")
ENDS_UNCOMPARED = _undecided(
    "ends_uncompared", "One arm ends with a tensor that the other has not, or has under another name or shape."
)
NO_NOISE = _undecided(
    "no_noise", "The baseline repeats itself in bits, and the candidate does not equal it: noise explains nothing."
)
NOISE_HIDES = _undecided(
    "noise_hides", "The baseline's runs lie so far apart that an arm which is not trained would not show."
)
NOISE_ABOVE_TOLERANCE = _undecided(
    "noise_above_tolerance", "The baseline differs from its own repetition by more than the tolerance."
)
REPLAYS_UNWATCHED = _undecided(
    "replays_unwatched", "What the device did in the replays was not recorded: evidence of an older harness."
)
STEPS_UNWATCHED = _undecided(
    "steps_unwatched", "Some steps were watched for what they do beside replays, and not every judged one."
)
CLOCK_CONTRADICTED = _undecided(
    "clock_contradicted", "The timed seconds contradict device time, processor time or the supervisor's clock."
)
LAUNCHES_UNOBSERVED = _undecided(
    "launches_unobserved", "The harness itself observed no replay; there is only the system's own count."
)
COUNTER_BLIND = _undecided(
    "counter_blind", "The counter of graph launches did not see one that was planted for it: its counts decide nothing."
)
PROFILER_BLIND = _undecided(
    "profiler_blind", "The profiler did not see a sync planted after the steps it watched: it may have seen nothing."
)
DEVICE_WORK_UNOBSERVED = _undecided(
    "device_work_unobserved", "No process of the timing was profiled: what the device did in a step is unknown."
)
GRAPHS_DIFFER = _undecided(
    "graphs_differ", "A process that was not profiled captured other graphs than the profiled one that stands for it."
)
UNKNOWN_NODE_TYPE = _undecided(
    "unknown_node_type", "The graph holds a node of a type whose effect on a replay is unknown."
)
DETECTORS_DISAGREE = _undecided(
    "detectors_disagree", "Two sync detectors disagree, though both readings are within the bound."
)
ONE_DETECTOR = _undecided("one_detector", "Fewer than two usable sync detectors gave a reading.")
OPERATORS_UNSEEN = _undecided(
    "operators_unseen", "A recorded step has operators of which nothing on a CPU says whether they wait for the device."
)
RAN_AS_WRITTEN = _undecided(
    "ran_as_written",
    "A recording holds as it is written what the step runs as compiled code, which computes other bits.",
)
DRIVER_VERSION_UNKNOWN = _undecided("driver_version_unknown", "The newest PTX version the driver loads is unknown.")
MISSING_CASES = _undecided("missing_cases", "Some operation, data type, shape or magnitude of the grid was not run.")

# --- this machine or system cannot decide it ---------------------------------------------------------------------
NEEDS_CUDA = _not_run("needs_cuda", "The claim needs a CUDA device, and this machine has none.")
NEEDS_GPU = _not_run("needs_gpu", "The workload needs another GPU than there is.")
NEEDS_MEMORY = _not_run("needs_memory", "The workload needs more device memory than there is.")
MODULE_MISSING = _not_run("module_missing", "A Python module that the workload needs is not installed.")
CAPABILITY_MISSING = _not_run("capability_missing", "The system does not offer what the claim is judged from.")
MECHANISM_MISSING = _not_run(
    "mechanism_missing", "The evidence is of another replay mechanism than the claim's, and cannot decide it."
)
JUDGE_MISSING = _not_run("judge_missing", "No judge for this kind of claim is installed.")
NOT_AVAILABLE = _not_run("not_available", "This machine cannot open the system.")
FAULT_NOT_OFFERED = _not_run("fault_not_offered", "The system does not offer the fault that was to be planted.")
NOT_IN_CONTRACT = _not_run("not_in_contract", "The contract that it is judged by does not have this unit.")
EVIDENCE_OF_ANOTHER_CONTRACT = _not_run(
    "evidence_of_another_contract", "What was run is not what the contract says, so the unit itself was not run."
)
ONE_COMMIT_A_PROCESS = _not_run(
    "one_commit_a_process",
    "The claim's arms share a process, which cannot hold two commits.",
)
ONE_RANK_ONLY = _not_run("one_rank_only", "The claim cannot be judged of an arm with several ranks.")
NEEDS_BASELINE = _not_run(
    "needs_baseline", "The claim's arms have equal settings: they differ by their commits, and no other was given."
)
NOT_PLANNED = _not_run("not_planned", "No run was made for this unit.")

# --- harness, worker or system broke -----------------------------------------------------------------------------
WORKER_SIGNAL = _error("worker_signal", "The worker was ended by a signal.")
WORKER_EXIT_CODE = _error("worker_exit_code", "The worker ended with a non-zero exit code.")
WORKER_WALL_LIMIT = _error("worker_wall_limit", "The worker ran past its wall limit.")
WORKER_HEARTBEAT = _error("worker_heartbeat", "The worker made no progress for longer than its heartbeat.")
WORKER_INCOMPLETE = _error("worker_incomplete", "The worker ended without its `complete` record.")
WORKER_GARBAGE = _error("worker_garbage", "The worker's evidence cannot be read.")
WORKER_OUTPUT_LIMIT = _error("worker_output_limit", "The worker printed more than is kept.")
WORKER_EXCEPTION = _error("worker_exception", "An exception ended the worker, or an arm that the claim names.")
SYSTEM_NOT_DESCRIBED = _error(
    "system_not_described", "The system cannot be imported, or does not say what it offers, so nothing of it was run."
)
EVIDENCE_MISSING = _error("evidence_missing", "Evidence that the claim is judged from is missing.")
EVIDENCE_INCONSISTENT = _error("evidence_inconsistent", "Two pieces of the evidence contradict each other.")
JUDGE_ERROR = _error("judge_error", "The judge itself failed; a defect of the harness.")


def _add(kind: Kind, reasons: dict[str, Reason]) -> None:
    """Add the codes of a kind's row. Raises KindError for one that is taken."""
    for code, (status, explanation) in kind.reasons.items():
        if code in reasons:
            where, remedy = f"claim kind '{kind.name}'", "rename it, or use the one that is there"
            raise KindError("a kind's own reason code is not taken", where=where, got=f"'{code}'", remedy=remedy)
        reasons[code] = Reason(code, Status(status), explanation)


for _kind in BUILT_IN.values():
    _add(_kind, REASONS)


def reason_of(code: str) -> Reason | None:
    """The reason of that code; None when neither the harness nor a kind of claim lists it."""
    return REASONS.get(code) or _with_packages().get(code)


@cache
def _with_packages() -> dict[str, Reason]:
    reasons = dict(REASONS)
    for name, kind in kinds().items():
        if name not in BUILT_IN:
            _add(kind, reasons)
    return reasons
