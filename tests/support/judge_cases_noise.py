"""Cases of a trajectory within the baseline's own noise: five runs of each arm with slightly different numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from evidence_builders import LOSSES, STEPS, TRAJECTORY, arm, graphed, paired, untrained, verdict_of
from judge_cases import Case
from judge_cases_throughput import FASTER, processes

from harness.evidence.arm_records import Sketch
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.verdict import Verdict

RUNS, NOISE, EPSILON = 5, 1e-4, 2.0**-23
NOISE_CLAIM: dict[str, Any] = {"equality": "noise", "max_abs_difference": None}
ALONE: dict[str, Any] = {"guards": {"steps": STEPS}}  # no untrained control shows what a loss could show
BARELY: dict[str, Any] = {
    "guards": {"steps": STEPS, "training_effect": {"control": "untrained", "last": 2, "at_least": 1e-5}}
}
WAY = [f"parameters p{index}" for index in range(4)]


def sketched(execution: ArmEvidence, ends: dict[str, Sketch] | None) -> ArmEvidence:
    """Return the execution with sketches of a start at 0 and of the given end."""
    assert execution.end is not None
    start = execution.start.model_copy(update={"sketches": dict.fromkeys(WAY, (EPSILON, 0.0, 0.0, 0.0, 0.0, 0.0))})
    end = execution.end.model_copy(update={"sketches": ends})
    return replace(execution, start=start, end=end)


def ending(scatter: np.ndarray[Any, Any], way: float = 1.0) -> dict[str, Sketch]:
    """Return sketches of four parameters, scattered [4, 4] around this movement."""
    return {name: (EPSILON, way, *(way + row).tolist()) for name, row in zip(WAY, scatter, strict=True)}


def in_noise(
    *,
    off: float = 0.0,
    noise: float = NOISE,
    ours: float | None = None,
    way: float = 1.0,
    claim: Any = None,
    control: float | None = None,
    **changes: Any,
) -> Verdict:
    """Return the verdict on runs with this noise (the candidate's: `ours`, if given), the candidate's off by `off`.

    control: by how much the control's losses are off, if they are like the baseline's.
    """
    draw = np.random.default_rng(5)
    executions = []
    for name, of_arm in (("ungraphed", noise), ("graphed", noise if ours is None else ours)):
        for replica in range(RUNS):
            losses = LOSSES + of_arm * draw.normal(size=STEPS) + off * (name == "graphed")
            execution = (
                graphed(losses, replica=replica, **changes) if name == "graphed" else arm(name, losses, replica=replica)
            )
            executions.append(sketched(execution, ending(of_arm * draw.normal(size=(4, 4)), way)))
    beside = untrained() if control is None else untrained(losses=LOSSES + control)
    return verdict_of(TRAJECTORY | NOISE_CLAIM | (claim or {}), paired(*executions, beside))


def unsketched() -> Verdict:
    """Return the verdict on evidence for which no sketch was requested."""
    runs = [arm("ungraphed", replica=each) for each in range(RUNS)] + [graphed(replica=each) for each in range(RUNS)]
    return verdict_of(TRAJECTORY | NOISE_CLAIM, paired(*runs, untrained()))


def without_steps() -> Verdict:
    """Return the verdict on runs without a step."""
    none: dict[str, Any] = {"start": "start", "end": "start", "batches": []}
    runs = [arm("ungraphed", [], replica=each, **none) for each in range(RUNS)]
    runs += [graphed([], replica=each, **none) for each in range(RUNS)]
    found = [sketched(each, ending(np.zeros((4, 4)))) for each in runs]
    return verdict_of(TRAJECTORY | NOISE_CLAIM | ALONE, paired(*found))


NOISE_CASES = [
    Case("within its own noise", "held", in_noise),
    Case("beyond its own noise", "beyond_noise", lambda: in_noise(off=0.01)),
    Case("noisier than the baseline", "beyond_noise", lambda: in_noise(ours=0.01)),
    Case(
        "in what noise cannot touch",
        "beyond_noise",
        lambda: in_noise(end_state={"generators": {"torch.cpu": "another"}}),
    ),
    Case("noise that hides the training", "noise_hides", lambda: in_noise(way=3e-4, claim=ALONE)),
    Case("noise that hides the ends and no loss", "held", lambda: in_noise(way=1e-5)),
    Case("noise that hides a control", "noise_hides", lambda: in_noise(way=1e-5, claim=BARELY, control=3e-4)),
    Case("a control beyond noise", "held", lambda: in_noise(way=1e-5, claim=BARELY, control=4e-4, off=2e-4)),
    Case("a rounding without noise", "no_noise", lambda: in_noise(noise=0.0, off=4e-16)),
    Case("apart without noise", "beyond_noise", lambda: in_noise(noise=0.0, off=0.01)),
    Case("a sum that overflows", "non_finite", lambda: in_noise(way=math.inf)),
    Case("no steps within noise", "vacuous_steps", without_steps),
    Case("noise that was not sketched", "evidence_missing", unsketched),
]


def scattered(off: float = 0.0) -> list[RunEvidence]:
    """Return processes of a timing whose losses vary; the candidate's loss of step 3 differs by `off`."""
    drawn = np.random.default_rng(0)

    def changed(each: ArmEvidence, away: float) -> ArmEvidence:
        losses = each.series.loss + drawn.normal(0, 1e-4)
        losses[3] += away
        return replace(each, series=replace(each.series, loss=losses))

    shifts = (("graphed", off), ("ungraphed", 0.0))
    return [
        replace(run, arms={name: [changed(each, away) for each in run.arms[name]] for name, away in shifts})
        for run in processes(1.2)
    ]


def timed_in_noise(off: float = 0.0) -> Verdict:
    return verdict_of(FASTER, *scattered(off), beside=[TRAJECTORY | NOISE_CLAIM])


TIMED_NOISE_CASES = [
    Case("in losses that scatter as the baseline's do", "held", timed_in_noise),
    Case("in losses that lie apart from the baseline's", "beyond_noise", lambda: timed_in_noise(0.01)),
    Case("in losses that lie hardly apart", "beyond_noise", lambda: timed_in_noise(6e-4)),
    Case(
        "in bits, of losses that scatter as the baseline's do",
        "baseline_not_repeatable",
        lambda: verdict_of(FASTER, *scattered(), beside=[TRAJECTORY]),
    ),
]
