"""Cases exactly at a bound and just beyond it, by kind of claim, with the verdict on each side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from evidence_builders import (
    STEPS,
    TRAJECTORY,
    arm,
    blocks,
    graph,
    graphed,
    memory,
    paired,
    sample,
    syncs,
    twice,
    verdict_of,
)
from judge_cases import Case
from judge_cases_capture import CONTROL, captured, replays, retraced, sampled, watched
from judge_cases_gradients import GRADIENTS_WITHIN, A, all_steps, matched, norm, unlike
from judge_cases_kernel_match import GRID, agreed, compared
from judge_cases_kernels import odd, prewarmed, targeted
from judge_cases_throughput import machine, processes, timed
from judge_cases_training import EXECUTIONS, changed, trajectory

from harness.evidence.run_records import KernelCase, Telemetry
from harness.judging.verdict import Verdict

WITHIN_A_HALF: dict[str, Any] = {"equality": "within", "max_abs_difference": 0.5}
FLAT = {"steps": STEPS}


def level(loss: float) -> np.ndarray[Any, Any]:
    """Return losses that start at the control's 3 and then alternate by 1/8 around a level."""
    return np.array([3.0, *(loss + (0.125 if step % 2 else -0.125) for step in range(STEPS - 1))])


def flat(ours: float, repetition: float, effect: float = 0.25) -> Verdict:
    """Return the verdict on constant levels of loss: the baseline's is 1, the control's is 3."""
    control = {"control": "untrained", "last": 2, "at_least": effect}
    return trajectory(
        graphed(level(ours)),
        arm("ungraphed", level(1.0)),
        repetition=arm("ungraphed", level(repetition), replica=1),
        claim=WITHIN_A_HALF | {"guards": FLAT | {"training_effect": control}},
    )


def one_step(**claim: Any) -> Verdict:
    run = paired(*twice("ungraphed", [2.0]), graphed([2.0]))
    return verdict_of(TRAJECTORY | {"guards": {"steps": 1}} | claim, run, steps=1)


def without_norms(demanded: int) -> Verdict:
    """Return the verdict if no arm records whether its clip was active."""
    guards = FLAT | {"clip_active_steps": demanded}
    return trajectory(*(execution(active=-1) for execution in EXECUTIONS), claim={"guards": guards})


def erring(*errors: float) -> list[KernelCase]:
    """Return cases whose bfloat16 cases have these errors; the bound is 0.01."""
    exact = [compared(*point) for point in GRID[:2]]
    return exact + [compared(*point, error_vs_naive=error) for point, error in zip(GRID[2:], errors, strict=True)]


def clipped(*after: float) -> Verdict:
    """Return the verdict on these norms after clipping at 1, with a quarter allowed for rounding."""
    groups = [group for value in after for group in norm(4.0, value)]
    return matched(groups=groups, claim={"clipped_norm": {"at_most": 1.0, "relative_rounding": 0.25}})


def one_block_of_a_round() -> dict[str, Any]:
    first, *_ = made = blocks([0.01] * 4, [0.012] * 4, steps=2)
    return {"timing": {"blocks": [*made[4:], first]}}


def clocks(*mhz: float | None) -> dict[str, Any]:
    return {"telemetry": Telemetry(samples=[sample(sm_clock_mhz=each) for each in mhz])}


def idle_for_a_quarter(allowed: float) -> Verdict:
    """Return the verdict on baseline blocks of a quarter second, in which the processor was idle for a quarter."""
    made = [
        block.model_copy(update={"processor_seconds": 0.75 * block.seconds})
        for block in blocks([0.125 / 1.2] * 4, [0.125] * 4, steps=2)
    ]
    return timed(claim={"limits": {"baseline_idle_share": allowed}}, timing={"blocks": made})


def by_one_layer() -> dict[str, Any]:
    return {"execution": {"facts": {"layers": 1}}, "nodes": [graph(kernels={"gemm": 6}, clipped_tensors=6)]}


BOUNDS: dict[str, list[Case]] = {
    "trajectory_match": [
        Case("the noise at the tolerance", "held", lambda: flat(1.0, 1.5)),
        Case("the noise beyond the tolerance", "noise_above_tolerance", lambda: flat(1.0, 1.75)),
        Case("the effect demanded", "held", lambda: flat(1.0, 1.0, effect=2.0)),
        Case("less than the effect demanded", "vacuous_training_effect", lambda: flat(1.25, 1.0, effect=2.0)),
        Case("one step", "held", one_step),
        Case("one step, the final one", "held", lambda: one_step(compare="final")),
        Case("no norms where no clip is demanded", "held", lambda: without_norms(0)),
        Case("no norms where one clip is demanded", "capability_missing", lambda: without_norms(1)),
        Case(
            "infinity in both",
            "non_finite",
            lambda: trajectory(graphed(changed(4, math.inf)), arm("ungraphed", changed(4, math.inf))),
        ),
    ],
    "gradient_match": [
        Case("at the bound", "held", lambda: matched(A, unlike(1e-3), claim=GRADIENTS_WITHIN)),
        Case(
            "at the relative bound",
            "held",
            lambda: matched(A, unlike(5e-4), claim=GRADIENTS_WITHIN | {"max_relative_difference": 1e-3}),
        ),
        Case("norms within the rounding", "held", lambda: clipped(1.25, 1.0)),
        Case("one norm beyond the rounding", "clipped_norm_exceeded", lambda: clipped(1.25, 1.5)),
        Case(
            "norms at the threshold before",
            "vacuous_clip_inactive",
            lambda: matched(execution=all_steps(A, unlike(0.0, digest="same"), groups=norm(1.0, 1.0))),
        ),
        Case(
            "one clip demanded and nothing clipped",
            "vacuous_clip_inactive",
            lambda: matched(
                claim={"clip_active_steps": 1},
                execution=all_steps(A, unlike(0.0, digest="same"), groups=norm(0.5, 0.5)),
            ),
        ),
    ],
    "capture": [
        Case("one layer", "held", lambda: captured({"nodes_at_least": 1}, **by_one_layer())),
        Case("as many operations as recorded", "held", lambda: retraced(observed_replayed_operations=120)),
        Case("one operation short of twice", "held", lambda: retraced(observed_replayed_operations=239)),
    ],
    "host_syncs": [
        Case("one step watched", "held", lambda: watched(replays({"profiler": 0, "sync_debug_mode": 0}, steps=1))),
        Case(
            "one layer",
            "held",
            lambda: watched(control=syncs("synchronizing", CONTROL, layers=1, steps=4)),
        ),
    ],
    "memory_steady": [
        Case("no reserved byte", "vacuous_no_memory", lambda: sampled([5, 5, 5], [0, 0, 0])),
        Case("no allocated byte", "vacuous_no_memory", lambda: sampled([0, 0, 0], [5, 5, 5])),
        Case(
            "no allocated byte where reserved ones are judged",
            "held",
            lambda: sampled([0, 0, 0], [5, 5, 5], claim={"of": "reserved"}),
        ),
        Case("too few samples for a second comparison", "held", lambda: sampled([100, 900, 110, 140])),
        Case("a leak within less than two rounds", "memory_grows", lambda: sampled([100, 900, 110, 140, 160])),
        Case(
            "a leak behind a peak after the warm-up",
            "memory_grows",
            lambda: sampled([100, 900, 900, 10, 10, 10, 10, 10, 12, 14, 16, 18, 20, 22]),
        ),
        Case("a round of shapes", "held", lambda: sampled([100, 900, *[10, 50] * 4, 10])),
        Case("less memory for a while", "held", lambda: sampled([9, 9, 9, 9, 9, 9, 5, 5, 9, 9, 9, 9])),
        Case("a hump in between", "held", lambda: sampled([100, 900, 100, 100, 150, 150, 100, 100])),
        Case(
            "another kind of sample before",
            "held",
            lambda: sampled([5] * 3, memory=[memory([1, 2, 9], per="recapture"), memory([5] * 3)]),
        ),
    ],
    "ptx_target": [
        Case("as old as its target", "held", lambda: targeted(**odd(versions=["8.0"]))),
        Case("as new as the driver", "held", lambda: targeted(**odd(versions=["9.0"]))),
    ],
    "prewarm": [
        Case("a handle born with the upload", "handle_late", lambda: prewarmed(handles={"cublas": 2.0})),
        Case("one byte short of a workspace", "held", lambda: prewarmed(free_bytes_after_fill=32 * 2**20 - 1)),
    ],
    "kernel_match": [
        Case("errs by the bound", "held", lambda: agreed(cases=erring(1e-2, 1e-6))),
        Case("one errs by the bound, one by more", "exceeds_tolerance", lambda: agreed(cases=erring(1e-2, 2e-2))),
        Case("one element unwritten", "unwritten_elements", lambda: agreed(last={"unwritten": 1})),
    ],
    "throughput_ratio": [
        Case("the fewest processes", "held", lambda: timed(processes(1.2)[:7], {"processes": 7})),
        Case("idle for as long as allowed", "held", lambda: idle_for_a_quarter(0.25)),
        Case("idle for longer than allowed", "baseline_idle", lambda: idle_for_a_quarter(0.125)),
        Case(
            "two limits exceeded",
            "limits_exceeded",
            lambda: timed(**machine(foreign_processes=1, host_load_per_core=1.5)),
        ),
        Case("a clock that reads zero", "telemetry_missing", lambda: timed(**clocks(0.0, 0.0))),
        Case("a clock in GHz", "limits_exceeded", lambda: timed(**clocks(0.8, 1.0))),
        Case("a round of one block", "evidence_inconsistent", lambda: timed(**one_block_of_a_round())),
    ],
}
