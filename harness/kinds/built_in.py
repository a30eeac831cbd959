"""The harness's own kinds of claim, a row each, in the order in which messages and the published schema list them.

Capabilities `parameters` and `inputs`: equal starts and equal batches are proven by digests of both.
"""

from __future__ import annotations

from harness.kinds.checks import SHARED_CHECKS
from harness.kinds.kind import Deciding, Interval, Kind

MISSING_RUN = "harness.drill.evidence_faults:MISSING_RUN"
NO_STEPS = "harness.drill.evidence_faults:NO_STEPS"

_BITS = ("equality", "bitwise")
_SERIES = (
    Deciding("steps_differing", "none", "equality", of="steps", noun="steps differ", when=_BITS),
    Deciding("max_abs_difference", "at most", "max_abs_difference"),
)
_RELATIVE = Deciding("max_relative_difference", "at most", "max_relative_difference")
_GUARDS = (
    Deciding("steps_run", "at least", "guards.steps"),
    Deciding("distinct_batches", "at least", "guards.distinct_batches"),
    Deciding("clip_active_steps", "at least", "guards.clip_active_steps"),
    Deciding("training_effect", "at least", "guards.training_effect.at_least"),
)
_STEPS_RUN = Deciding("steps_run", "at least", "steps")
_RATIO = Interval("lower_bound", "upper_bound", "confidence", "one-sided bounds", "processes")
_WORSE_BY = Interval("worse_by_at_least", "worse_by_at_most", "confidence", "one-sided bounds", "seeds")
_SLOWDOWN = Interval("slowdown_least", "slowdown_most", 0.99, "intervals of both medians", "timed_blocks")
_PEAK = "candidate_{of}_peak_{over}"

_NO_GUARDS = "Its model has no `guards`."
_ONE_ARM = "It judges one execution, and compares it with nothing."
_REFERENCE = "The reference computes in another precision, so that equal values have other digests."
_FOLLOWS = "A reference makes each step from the candidate's state, and trains nothing by itself."
_PARAMETERS_ALONE = "Published runs hold the parameters alone of a peer and a reference."
_NOT_WATCHED = "Its probe does not watch single steps."
_OLDER = {"watched.older": "Its probe did not watch single steps before November 28, 2026."}
_NOT_TRAINED = "Its probe trains no arm: kernels are compiled, listed or executed alone."
_OWN_CONTROL = "A control may wait for the device and do nothing else."
_COUNTED = "Waits are counted in each arm, and the arms are not compared."
_FIRST_LOSS = "A control may store frozen tensors in another format; its first loss is the candidate's."
_STILL = "A control is not trained, so that its end says nothing."
_HALF = {
    "equal_start.half": "The second half begins anew, and what it loads is compared with what was saved.",
    "equal_state.half": "The second half begins anew, and what it loads is compared with what was saved.",
    "equal_ends.half": "The first half ends with what was saved, which is compared with what was loaded.",
}
_CONTROL = {"equal_frozen.control": _FIRST_LOSS, "equal_ends.control": _STILL}
_NOISE = "The baseline's second run shows its noise, and no claim says how that run ends."
_ALONE = dict.fromkeys(("comparable", "equal_start", "equal_frozen", "equal_state", "equal_ends"), _ONE_ARM)
_KERNELS = dict.fromkeys(SHARED_CHECKS, _NOT_TRAINED)

_ROWS = (
    Kind(
        name="trajectory_match",
        model="harness.contract.kinds.training:TrajectoryMatch",
        judge="harness.judge.trajectory_match:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("trajectories",),
        deciding=(
            *_SERIES,
            _RELATIVE,
            Deciding("beyond_noise", "at most", "equality", bound=1.0, when=("equality", "noise")),
            *_GUARDS,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={**_CONTROL, "equal_ends.repetition": _NOISE},
        reasons={},
    ),
    Kind(
        name="gradient_match",
        model="harness.contract.kinds.training:GradientMatch",
        judge="harness.judge.gradient_match:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs", "gradients"}),
        judges_unreadable_device=False,
        card=("gradients",),
        deciding=(
            Deciding("tensors_differing", "none", "equality", of="tensors", noun="tensors differ", when=_BITS),
            Deciding("max_abs_difference", "at most", "max_abs_difference"),
            _RELATIVE,
            Deciding("largest_clipped_norm", "at most", "clipped_norm.at_most"),
            Deciding("clip_active_steps", "at least", "clip_active_steps"),
        ),
        evidence_faults=(MISSING_RUN,),
        leaves_out={"repetition": "The baseline's second run shows only whether its gradients repeat."},
        reasons={},
    ),
    Kind(
        name="capture",
        model="harness.contract.kinds.replay:Capture",
        judge="harness.judge.capture:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs", "capture"}),
        judges_unreadable_device=False,
        card=("graph", "syncs"),
        deciding=(
            Deciding("captures", "exactly", "captures", when=("per_shape", False)),
            Deciding("captures", "at most", "captures", of_demand="a shape", when=("per_shape", True)),
            Deciding("kernels_per_layer", "at least", "kernels_per_layer_at_least"),
            Deciding("kernels_in_every_layer", "at least", "kernels_in_every_layer"),
            Deciding("clipped_tensors", "exactly", "clipped_tensors_per_layer", of_demand="a layer"),
            Deciding("skipped_steps", "at most", "skipped_steps_at_most"),
            Deciding("outside_share", "at most", "outside_share_at_most", percent=True),
            Deciding("outside_operations", "at most", "outside_operations_at_most"),
        ),
        evidence_faults=(MISSING_RUN,),
        leaves_out={
            **_ALONE,
            "uncaptured": "It judges a captured arm alone.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="capture_fallback",
        model="harness.contract.kinds.replay:CaptureFallback",
        judge="harness.judge.capture_fallback:judge",
        probes={"paired": ()},
        capabilities=frozenset({"capture", "parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("trajectories",),
        deciding=(
            Deciding("capture_attempts", "exactly", "attempts"),
            Deciding("unasked_captures", "at most", "unasked_at_most"),
            _STEPS_RUN,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "captured": "The candidate's capture must fail.",
            "watched": "The candidate's capture must fail, so that no step is a replay.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="throughput_ratio",
        model="harness.contract.kinds.throughput:ThroughputRatio",
        judge="harness.judge.throughput_ratio:judge",
        probes={"throughput": ("candidate", "baseline", "blocks", "block_steps")},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("throughput",),
        deciding=(
            Deciding("mean_ratio", "at least", "at_least", interval=_RATIO),
            Deciding("generous_mean_ratio", "at least", "at_least", interval=_RATIO, refutes=True),
        ),
        evidence_faults=(MISSING_RUN,),
        leaves_out={"guards": _NO_GUARDS},
        reasons={},
    ),
    Kind(
        name="host_syncs",
        model="harness.contract.kinds.replay:HostSyncs",
        judge="harness.judge.host_syncs:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("syncs",),
        deciding=(
            Deciding("candidate_syncs_per_step", "exactly", "candidate.exactly", when=("candidate.per_layer", False)),
            Deciding("candidate_syncs_per_step", "exactly", "candidate.exactly", of_demand="a layer"),
            Deciding("candidate_syncs_per_step", "at most", "candidate.at_most", when=("candidate.per_layer", False)),
            Deciding("candidate_syncs_per_step", "at most", "candidate.at_most", of_demand="a layer"),
            Deciding("control_syncs_per_step", "exactly", "control.exactly", when=("control.per_layer", False)),
            Deciding("control_syncs_per_step", "exactly", "control.exactly", of_demand="a layer"),
        ),
        evidence_faults=(MISSING_RUN,),
        leaves_out={
            "comparable": _COUNTED,
            "equal_start": _COUNTED,
            "equal_frozen": _COUNTED,
            "equal_state": _COUNTED,
            "equal_ends": _COUNTED,
            "finite.control": _OWN_CONTROL,
            "trained.control": _OWN_CONTROL,
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="ptx_target",
        model="harness.contract.kinds.kernels:PtxTarget",
        judge="harness.judge.ptx_target:judge",
        probes={"kernels": ("target",)},
        capabilities=frozenset({"kernels"}),
        judges_unreadable_device=True,
        card=("ptx",),
        deciding=(Deciding("kernels_mismatched", "none", "policy", of="kernels", noun="kernels do not fit"),),
        evidence_faults=(MISSING_RUN,),
        leaves_out=_KERNELS,
        reasons={},
    ),
    Kind(
        name="prewarm",
        model="harness.contract.kinds.kernels:Prewarm",
        judge="harness.judge.prewarm:judge",
        probes={"kernels": ("target", "scope"), "prewarm": ("target", "handles", "memory_filled")},
        capabilities=frozenset({"kernels"}),
        judges_unreadable_device=False,
        card=("jit", "ptx"),
        deciding=(
            Deciding("late_jit_events", "none", "scope", of="jit_events", noun="compiles and loads came late"),
            Deciding("keys_missing", "none", "scope", of="used_kernels", noun="kernels were not prewarmed"),
        ),
        evidence_faults=(MISSING_RUN,),
        leaves_out=_KERNELS,
        reasons={},
    ),
    Kind(
        name="kernel_match",
        model="harness.contract.kinds.kernels:KernelMatch",
        judge="harness.judge.kernel_match:judge",
        probes={"kernel_match": ("operations", "max_relative_error", "magnitudes")},
        capabilities=frozenset({"kernel_cases"}),
        judges_unreadable_device=False,
        card=("accuracy",),
        deciding=(
            Deciding("max_error_vs_fp64.*", "at most", "max_relative_error"),
            Deciding("over_peer.*", "at most", "over_peer_at_most"),
        ),
        evidence_faults=(MISSING_RUN,),
        leaves_out=_KERNELS,
        reasons={},
    ),
    Kind(
        name="step_match",
        model="harness.contract.kinds.steps:StepMatch",
        judge="harness.judge.step_match:judge",
        probes={"step_match": ("candidate", "reference", "yardstick")},
        capabilities=frozenset({"parameters", "inputs", "gradients", "gradient_norms"}),
        judges_unreadable_device=False,
        card=("steps",),
        deciding=(
            Deciding("*_error_over_bound", "at most", "max_evaluation_error", noun="of the error allowed", bound=1.0),
            _STEPS_RUN,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "comparable.reference": _REFERENCE,
            "equal_start.reference": _REFERENCE,
            "equal_frozen": "The reference stores frozen tensors in another format.",
            "equal_state": "The reference gets the candidate's state before each step.",
            "equal_ends": "Each step is compared within rounding, from the candidate's state before it.",
            "trained.reference": _FOLLOWS,
            "trained.yardstick": _FOLLOWS,
            **_OLDER,
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="repeatability",
        model="harness.contract.kinds.training:Repeatability",
        judge="harness.judge.repeatability:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("trajectories",),
        deciding=(*_SERIES, _RELATIVE, *_GUARDS),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out=_CONTROL,
        reasons={},
    ),
    Kind(
        name="runs_differ",
        model="harness.contract.kinds.settings:RunsDiffer",
        judge="harness.judge.runs_differ:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("trajectories",),
        deciding=(
            Deciding("losses_equal", "at most", "losses_from", noun="steps have equal losses"),
            Deciding("batches_equal", "none", "batches", of="steps", noun="steps read the same batch"),
            _STEPS_RUN,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "comparable": "The arms differ in a setting, such as the seed, that may reach their batches.",
            "equal_start": "The arms differ in a setting that may reach their start.",
            "equal_frozen": "The arms differ in a setting that may reach their start.",
            "equal_state": "The arms differ in a setting that may reach their start.",
            "equal_ends": "The arms must train differently.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="step_accuracy",
        model="harness.contract.kinds.accuracy:StepAccuracy",
        judge="harness.judge.step_accuracy:judge",
        probes={
            "step_accuracy": ("candidate", "peer", "reference", "gradient_seeds", "gradient_steps", "loss_seeds"),
        },
        capabilities=frozenset({"parameters", "inputs", "gradients"}),
        judges_unreadable_device=False,
        card=("step_accuracy",),
        deciding=(
            Deciding("median_gradient_ratio", "at most", "median_gradient_ratio_at_most"),
            Deciding("largest_gradient_ratio", "at most", "gradient_ratio_at_most"),
            Deciding("loss_ratio", "at most", "loss_ratio_at_most"),
            Deciding("steps_run", "at least", "loss_steps"),
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "captured": "Asked where the candidate captures. No published run, which shows the checks, has such a one.",
            "uncaptured": "The arms are different implementations, of which none is the plain form of the candidate.",
            "watched": _NOT_WATCHED,
            "recorded.peer": _PARAMETERS_ALONE,
            "recorded.reference": _PARAMETERS_ALONE,
            "equal_frozen": "The arms store frozen tensors in different precisions.",
            "equal_state": "The arms are different implementations, with buffers and generators of their own.",
            "equal_ends": "Errors are compared, and no bits.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="accumulation",
        model="harness.contract.kinds.accumulation:Accumulation",
        judge="harness.judge.accumulation:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs", "gradients", "state"}),
        judges_unreadable_device=False,
        card=("gradients",),
        deciding=(
            Deciding("*_relative_difference", "at most", "max_relative_difference"),
            Deciding("micro_batches", "exactly", "micro_batches"),
        ),
        evidence_faults=(MISSING_RUN,),
        leaves_out={
            "equal_ends": "Two ways to add up a batch round differently: gradients and losses are compared in a bound.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="not_worse",
        model="harness.contract.kinds.seeds:NotWorse",
        judge="harness.judge.not_worse:judge",
        probes={"seeds": ("seeds",), "resumed_seeds": ("candidate", "seeds", "save_at")},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("seeds",),
        deciding=(
            Deciding("worse_by", "at most", "margin", interval=_WORSE_BY),
            Deciding("worse_by", "at most", "relative_margin", of_demand="times the baseline", interval=_WORSE_BY),
            *_GUARDS,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            **_CONTROL,
            **_HALF,
            "watched.half": "A profile would cost each of its many processes seconds.",
            "trained.half": "The two halves are judged together, as one training.",
            "equal_ends": "The arms may train differently: a metric is compared over seeds.",
        },
        reasons={},
    ),
    Kind(
        name="memory_steady",
        model="harness.contract.kinds.replay:MemorySteady",
        judge="harness.judge.memory_steady:judge",
        probes={"paired": (), "recapture": ("after",)},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("memory",),
        deciding=(Deciding("*_growth", "at most", "growth_at_most", percent=True),),
        evidence_faults=(MISSING_RUN,),
        leaves_out={
            **_ALONE,
            "uncaptured": "It judges a captured arm alone.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="peak_memory",
        model="harness.contract.kinds.memory:PeakMemory",
        judge="harness.judge.peak_memory:judge",
        probes={"peak_memory": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("peak_memory",),
        deciding=(
            Deciding(_PEAK, "at most", "at_most_gib"),
            Deciding("ratio", "at most", "at_most_ratio", noun="times the baseline's peak"),
            Deciding("candidate_outside_peak", "at most", "outside_at_most_gib"),
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "watched": "A profile of steps takes memory on the device, which is what is measured.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="long_replay",
        model="harness.contract.kinds.long_replay:LongReplay",
        judge="harness.judge.long_replay:judge",
        probes={"long_replay": ("candidate", "every")},
        capabilities=frozenset({"parameters", "inputs", "capture"}),
        judges_unreadable_device=False,
        card=("long_replay",),
        deciding=(
            Deciding("blocks_differing", "none", "steps", of="blocks", noun="blocks differ"),
            Deciding("slowdown", "at most", "slowdown_at_most", percent=True, interval=_SLOWDOWN),
            Deciding("*_growth", "at most", "memory_growth_at_most_mib"),
            Deciding("distinct_batches", "at least", "distinct_batches"),
            _STEPS_RUN,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={"watched": "Its steps are timed, and so would be the watch of each."},
        reasons={},
    ),
    Kind(
        name="resume",
        model="harness.contract.kinds.between_steps:Resume",
        judge="harness.judge.resume:judge",
        probes={"resume": ("candidate", "baseline", "save_at", "steps_before_load")},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("resume",),
        deciding=(
            *_SERIES,
            Deciding("not_restored_tensors", "none", "equality", of="state_tensors", noun="tensors were not restored"),
            Deciding("steps_after_the_load", "at least", "steps"),
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={**_HALF, **_OLDER, "guards": _NO_GUARDS},
        reasons={},
    ),
    Kind(
        name="evaluation",
        model="harness.contract.kinds.between_steps:Evaluation",
        judge="harness.judge.evaluation:judge",
        probes={"evaluation": ("candidate", "every", "plain")},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("evaluation",),
        deciding=(
            Deciding("steps_differing", "none", "steps", of="steps", noun="steps differ"),
            Deciding("evaluations_showing_something", "at least", "evaluations"),
            Deciding("evaluated_relative_difference", "at most", "max_relative_difference"),
            _STEPS_RUN,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "equal_ends.plain": "What the plain arm's evaluations return is compared, and not how it ends.",
            **_OLDER,
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="ranks_agree",
        model="harness.contract.kinds.ranks:RanksAgree",
        judge="harness.judge.ranks_agree:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("trajectories",),
        deciding=(
            Deciding("replicas_differing", "none", "steps", of="steps", noun="steps leave replicas that differ"),
            Deciding("host_collectives_per_step", "at most", "host_collectives_at_most"),
            Deciding("collectives_in_graph", "at least", "graph_collectives_at_least"),
            Deciding("largest_share", "at most", "share_at_most"),
            _STEPS_RUN,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "uncaptured": "It judges the ranks of one arm.",
            "comparable": "Each rank reads rows of its own.",
            "equal_state": "A rank may have buffers and generators of its own.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
    Kind(
        name="ranks_match",
        model="harness.contract.kinds.ranks:RanksMatch",
        judge="harness.judge.ranks_match:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        judges_unreadable_device=False,
        card=("trajectories",),
        deciding=(
            Deciding("max_abs_difference", "at most", "max_abs_difference"),
            _RELATIVE,
            Deciding("end_max_abs_difference", "at most", "max_end_difference"),
            Deciding("steps_not_in_turn", "none", "in_turn", of="steps", noun="steps leave parameters of other bits"),
            _STEPS_RUN,
        ),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "equal_state": "A rank may have buffers and generators of its own.",
            "equal_ends": "Sums over ranks round differently: ends are compared within `max_end_difference`.",
            "guards": _NO_GUARDS,
        },
        reasons={},
    ),
)
BUILT_IN = {row.name: row for row in _ROWS}
