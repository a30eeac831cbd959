"""List every reason code of verdicts, each as a constant with a status. The report explains the codes.

A code has exactly one status, so a judge returns only the code. A code names what was observed and never a planted
fault. Codes do not change between versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from harness.errors import KindError
from harness.judging.verdict import Status
from harness.kinds import BUILT_IN, Kind, kinds


@dataclass(frozen=True)
class Reason:
    """A reason code and its status. explanation: a text for the report, if a kind of claim defines the code."""

    code: str
    status: Status
    explanation: str = ""


# only the harness's own codes; `reason_of` also finds the codes of installed packages
REASONS: Final[dict[str, Reason]] = {}


def _code(code: str, status: Status) -> str:
    REASONS[code] = Reason(code, status)
    return code


_fails, _undecided = partial(_code, status=Status.FAIL), partial(_code, status=Status.INCONCLUSIVE)
_not_run, _error = partial(_code, status=Status.NOT_RUN), partial(_code, status=Status.ERROR)

HELD = _code("held", Status.PASS)

# --- reason codes: what two arms, or two runs of one arm, must share before their numbers mean anything ------
NON_FINITE = _fails("non_finite")
NON_FINITE_END = _fails("non_finite_end")
UNEQUAL_START = _fails("unequal_start")
UNEQUAL_LENGTHS = _fails("unequal_lengths")
UNEQUAL_BATCHES = _fails("unequal_batches")
UNEQUAL_TOKENS = _fails("unequal_tokens")

# --- reason codes: two arms differ ---------------------------------------------------------------------------
DIFFERS = _fails("differs")
END_DIFFERS = _fails("end_differs")
ENDS_APART = _fails("ends_apart")
OTHER_RANDOM_NUMBERS = _undecided("other_random_numbers")
HOST_VALUE_UNEXPLAINED = _undecided("host_value_unexplained")
BASELINE_NOT_REPEATABLE = _undecided("baseline_not_repeatable")
OPTIMIZATION_OFF = _undecided("optimization_off")
OTHER_PRECISION = _undecided("other_precision")
CLIP_UNSEEN = _undecided("clip_unseen")
END_STATE_UNRECORDED = _undecided("end_state_unrecorded")
EXCEEDS_TOLERANCE = _fails("exceeds_tolerance")
BEYOND_NOISE = _fails("beyond_noise")
FROZEN_CHANGED = _fails("frozen_changed")
CLIPPED_NORM_EXCEEDED = _fails("clipped_norm_exceeded")
TENSORS_MISSING = _fails("tensors_missing")

# --- reason codes of guards: a comparison shows nothing ------------------------------------------------------
VACUOUS_STEPS = _fails("vacuous_steps")
VACUOUS_NOTHING_COMPARED = _fails("vacuous_nothing_compared")
VACUOUS_PARAMETERS_UNCHANGED = _fails("vacuous_parameters_unchanged")
VACUOUS_SKIPPED_STEP = _fails("vacuous_skipped_step")
VACUOUS_BATCHES_REPEAT = _fails("vacuous_batches_repeat")
VACUOUS_CLIP_INACTIVE = _fails("vacuous_clip_inactive")
VACUOUS_TRAINING_EFFECT = _fails("vacuous_training_effect")
TRAINED_TOO_LITTLE = _undecided("trained_too_little")
VACUOUS_CONSTANT_LOSS = _fails("vacuous_constant_loss")
VACUOUS_CONSTANT_METRIC = _fails("vacuous_constant_metric")
VACUOUS_CONTROL_DIFFERS = _fails("vacuous_control_differs")
VACUOUS_BASELINE_CAPTURED = _fails("vacuous_baseline_captured")
VACUOUS_GRADIENTS_ZERO = _fails("vacuous_gradients_zero")
VACUOUS_PRECISION = _fails("vacuous_precision")
VACUOUS_PARAMETER_DTYPE = _fails("vacuous_parameter_dtype")
VACUOUS_CONTROL_NO_SYNC = _fails("vacuous_control_no_sync")
VACUOUS_DETECTOR_BLIND = _fails("vacuous_detector_blind")
VACUOUS_NO_KERNELS = _fails("vacuous_no_kernels")
VACUOUS_PEER = _fails("vacuous_peer")
VACUOUS_NO_BUFFERS = _fails("vacuous_no_buffers")
VACUOUS_NO_MEMORY = _fails("vacuous_no_memory")

# --- reason codes: work between two steps, which is an evaluation or resuming from a checkpoint --------------
NOT_RESTORED = _fails("not_restored")
NOTHING_LOADED = _fails("nothing_loaded")
VACUOUS_NOTHING_TO_LOAD = _fails("vacuous_nothing_to_load")
VACUOUS_NOTHING_SAVED = _fails("vacuous_nothing_saved")
VACUOUS_ONE_PROCESS = _fails("vacuous_one_process")
EVALUATION_CHANGED_STATE = _fails("evaluation_changed_state")
EVALUATION_NOT_FINITE = _fails("evaluation_not_finite")
EVALUATIONS_DIFFER = _fails("evaluations_differ")
VACUOUS_EVALUATIONS = _fails("vacuous_evaluations")

# --- reason codes: capture -----------------------------------------------------------------------------------
NOT_CAPTURED = _fails("not_captured")
CAPTURE_NOT_BEGUN = _fails("capture_not_begun")
EMPTY_CAPTURE = _fails("empty_capture")
FORBIDDEN_NODE = _fails("forbidden_node")
SYNC_IN_CAPTURE = _fails("sync_in_capture")
WRONG_CAPTURE_COUNT = _fails("wrong_capture_count")
UNCAPTURED_STEPS = _fails("uncaptured_steps")
LOST_STEP = _fails("lost_step")
EXTRA_STEP = _fails("extra_step")
LAUNCHES_DIFFER = _fails("launches_differ")
LAUNCHED_OTHERWISE = _fails("launched_otherwise")
WORK_OUTSIDE_GRAPHS = _fails("work_outside_graphs")
OUTPUT_NOT_FROM_REPLAY = _fails("output_not_from_replay")
MOVED_BUFFER = _fails("moved_buffer")
NODE_COUNT = _fails("node_count")
KERNELS_PER_LAYER = _fails("kernels_per_layer")
CLIPPED_TENSORS = _fails("clipped_tensors")
SKIPPED_STEPS = _fails("skipped_steps")

VACUOUS_CAPTURED = _fails("vacuous_captured")
FALLBACK_UNSAID = _fails("fallback_unsaid")
CAPTURE_ATTEMPTS = _fails("capture_attempts")
CAPTURED_UNASKED = _fails("captured_unasked")

# --- reason codes: settings that must make a difference ------------------------------------------------------
LOSSES_EQUAL = _fails("losses_equal")
BATCHES_EQUAL = _fails("batches_equal")
START_EQUAL = _fails("start_equal")

# --- reason codes: accumulation over micro-batches -----------------------------------------------------------
MICRO_BATCH_COUNT = _fails("micro_batch_count")
MICRO_BATCHES_REPEAT = _fails("micro_batches_repeat")
UPDATE_COUNT = _fails("update_count")
DIFFERS_FROM_ONE_BATCH = _fails("differs_from_one_batch")
VACUOUS_ONE_BATCH = _fails("vacuous_one_batch")
UPDATES_UNCOUNTED = _undecided("updates_uncounted")

# --- reason codes: ranks that train together -----------------------------------------------------------------
RANKS_DIFFER = _fails("ranks_differ")
RANK_BATCHES_EQUAL = _fails("rank_batches_equal")
RANK_ROW_COUNT = _fails("rank_row_count")
RANKS_END_APART = _fails("ranks_end_apart")
RANKS_DRAW_ALIKE = _fails("ranks_draw_alike")
RANKS_DRAW_APART = _fails("ranks_draw_apart")
COLLECTIVES_OUTSIDE_GRAPH = _fails("collectives_outside_graph")
COLLECTIVES_MISSING_IN_GRAPH = _fails("collectives_missing_in_graph")
SHARE_EXCEEDED = _fails("share_exceeded")
VACUOUS_NO_REPLICA = _fails("vacuous_no_replica")
VACUOUS_NO_COLLECTIVE = _fails("vacuous_no_collective")

# --- reason codes: several seeds -----------------------------------------------------------------------------
WORSE = _fails("worse")
VACUOUS_SEEDS_ALIKE = _fails("vacuous_seeds_alike")
UNDECIDED_DIFFERENCE = _undecided("undecided_difference")
TOO_FEW_SEEDS = _undecided("too_few_seeds")

# --- reason codes: host syncs and memory ---------------------------------------------------------------------
SYNC_COUNT = _fails("sync_count")
CONTROL_SYNC_COUNT = _fails("control_sync_count")
MEMORY_GROWS = _fails("memory_grows")
PEAK_MEMORY = _fails("peak_memory")
PEAK_RATIO = _fails("peak_ratio")
MEMORY_OUTSIDE_ALLOCATOR = _fails("memory_outside_allocator")
PEAK_UNKNOWN = _undecided("peak_unknown")
DEVICE_MEMORY_UNSEEN = _undecided("device_memory_unseen")

BASELINE_IDLE = _undecided("baseline_idle")
HOST_WAITED = _undecided("host_waited")
WORKS_OUTSIDE_BLOCKS = _undecided("works_outside_blocks")

# --- reason codes: kernels -----------------------------------------------------------------------------------
PTX_TARGET_MISSING = _fails("ptx_target_missing")
PTX_TARGET_MISMATCH = _fails("ptx_target_mismatch")
PTX_VERSION_UNSUPPORTED = _fails("ptx_version_unsupported")
DEVICE_UNREADABLE = _fails("device_unreadable")
DUPLICATE_KEY = _fails("duplicate_key")
PREWARM_MISSING_KEY = _fails("prewarm_missing_key")
PREWARM_PTX_DIFFERS = _fails("prewarm_ptx_differs")
LATE_JIT = _fails("late_jit")
HANDLE_LATE = _fails("handle_late")
STEP_FAILED_WHEN_FULL = _fails("step_failed_when_full")
UNWRITTEN_ELEMENTS = _fails("unwritten_elements")
OVERWRITTEN_MEMORY = _fails("overwritten_memory")
WRONG_TYPE = _fails("wrong_type")
VACUOUS_REFERENCE = _fails("vacuous_reference")
EXCEEDS_PEER = _fails("exceeds_peer")
PEER_MISSING = _undecided("peer_missing")
NOT_REPEATABLE = _fails("not_repeatable")
DEMAND_UNMET = _fails("demand_unmet")

# --- reason codes: throughput --------------------------------------------------------------------------------
TOO_SLOW = _fails("too_slow")
UNDECIDED_RATIO = _undecided("undecided_ratio")
CANDIDATE_STALLS = _undecided("candidate_stalls")
TOO_FEW_PROCESSES = _undecided("too_few_processes")
MEASUREMENTS_OVERLAP = _undecided("measurements_overlap")
LIMITS_EXCEEDED = _undecided("limits_exceeded")
TELEMETRY_MISSING = _undecided("telemetry_missing")

SLOWS_DOWN = _fails("slows_down")
UNDECIDED_SLOWDOWN = _undecided("undecided_slowdown")

# --- reason codes: measured, but not decided -----------------------------------------------------------------
CANDIDATE_NOT_CAPTURED = _undecided("candidate_not_captured")
RANK_SHARE_UNSEEN = _undecided("rank_share_unseen")
RANK_DRAWS_UNSEEN = _undecided("rank_draws_unseen")
GRADIENTS_UNDECIDED = _undecided("gradients_undecided")
ENDS_UNDECIDED = _undecided("ends_undecided")
ENDS_UNCOMPARED = _undecided("ends_uncompared")
ENDS_UNEXPLAINED = _undecided("ends_unexplained")
NO_NOISE = _undecided("no_noise")
NOISE_HIDES = _undecided("noise_hides")
NOISE_ABOVE_TOLERANCE = _undecided("noise_above_tolerance")
REPLAY_UNPROVEN = _undecided("replay_unproven")
REPLAYS_UNWATCHED = _undecided("replays_unwatched")
STEPS_UNWATCHED = _undecided("steps_unwatched")
WORK_AFTER_STEP = _undecided("work_after_step")
CLOCK_CONTRADICTED = _undecided("clock_contradicted")
LAUNCHES_UNOBSERVED = _undecided("launches_unobserved")
COUNTER_BLIND = _undecided("counter_blind")
PROFILER_BLIND = _undecided("profiler_blind")
DEVICE_WORK_UNOBSERVED = _undecided("device_work_unobserved")
GRAPHS_DIFFER = _undecided("graphs_differ")
UNKNOWN_NODE_TYPE = _undecided("unknown_node_type")
DETECTORS_DISAGREE = _undecided("detectors_disagree")
ONE_DETECTOR = _undecided("one_detector")
OPERATORS_UNSEEN = _undecided("operators_unseen")
RAN_AS_WRITTEN = _undecided("ran_as_written")
DRIVER_VERSION_UNKNOWN = _undecided("driver_version_unknown")
MISSING_CASES = _undecided("missing_cases")

# --- reason codes: this machine or this system cannot decide the claim ---------------------------------------
NEEDS_CUDA = _not_run("needs_cuda")
NEEDS_GPU = _not_run("needs_gpu")
NEEDS_MEMORY = _not_run("needs_memory")
MODULE_MISSING = _not_run("module_missing")
CAPABILITY_MISSING = _not_run("capability_missing")
MECHANISM_MISSING = _not_run("mechanism_missing")
JUDGE_MISSING = _not_run("judge_missing")
NOT_AVAILABLE = _not_run("not_available")
FAULT_NOT_OFFERED = _not_run("fault_not_offered")
NOT_IN_CONTRACT = _not_run("not_in_contract")
EVIDENCE_OF_ANOTHER_CONTRACT = _not_run("evidence_of_another_contract")
ONE_COMMIT_A_PROCESS = _not_run("one_commit_a_process")
ONE_RANK_ONLY = _not_run("one_rank_only")
NEEDS_BASELINE = _not_run("needs_baseline")
NOT_PLANNED = _not_run("not_planned")

# --- reason codes: the harness, a worker or the system failed ------------------------------------------------
WORKER_SIGNAL = _error("worker_signal")
WORKER_EXIT_CODE = _error("worker_exit_code")
WORKER_WALL_LIMIT = _error("worker_wall_limit")
WORKER_HEARTBEAT = _error("worker_heartbeat")
WORKER_INCOMPLETE = _error("worker_incomplete")
WORKER_GARBAGE = _error("worker_garbage")
WORKER_OUTPUT_LIMIT = _error("worker_output_limit")
WORKER_EXCEPTION = _error("worker_exception")
SYSTEM_NOT_DESCRIBED = _error("system_not_described")
EVIDENCE_MISSING = _error("evidence_missing")
EVIDENCE_INCONSISTENT = _error("evidence_inconsistent")
JUDGE_ERROR = _error("judge_error")


def _add(kind: Kind, reasons: dict[str, Reason]) -> None:
    """Add the reason codes of a kind of claim to `reasons`. Raises KindError if a code exists already."""
    for code, (status, explanation) in kind.reasons.items():
        if code in reasons:
            where, rename_code = f"claim kind '{kind.name}'", "rename the new code, or use the existing code"
            raise KindError(
                "the kind of claim adds a reason code that exists already",
                where=where,
                got=f"'{code}'",
                remedy=rename_code,
            )
        reasons[code] = Reason(code, Status(status), explanation)


for _kind in BUILT_IN.values():
    _add(_kind, REASONS)


def reason_of(code: str) -> Reason | None:
    """Return the reason with this code. Return None if neither the harness nor an installed package defines it."""
    return REASONS.get(code) or _with_packages().get(code)


@cache
def _with_packages() -> dict[str, Reason]:
    reasons = dict(REASONS)
    for name, kind in kinds().items():
        if name not in BUILT_IN:
            _add(kind, reasons)
    return reasons
