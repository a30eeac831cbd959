"""Cases about the roles of arms in trajectories and gradients: captured baselines, other systems, repetitions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from evidence_builders import (
    LOSSES,
    STEPS,
    TRAJECTORY,
    arm,
    cuda_graph,
    gradients,
    graphed,
    paired,
    trajectory_run,
    twice,
    untrained,
    verdict_of,
)
from judge_cases import Case
from judge_cases_gradients import GRADIENTS, A, all_steps, matched, unlike
from judge_cases_training import REPEATED, changed, nudged, trajectory

from harness.evidence.run_evidence import ArmEvidence, Death, RunEvidence
from harness.judging.verdict import Verdict

SWAPPED = {"candidate": "ungraphed", "baseline": "graphed"}
NEVER = cuda_graph(captured=False, failure="a sync at clip.py:7")


def swapped_trajectory(**changes: Any) -> Verdict:
    """Return the verdict if the captured arm is the baseline and the plain arm the candidate."""
    return verdict_of(
        TRAJECTORY | SWAPPED, paired(graphed(**changes), graphed(replica=1), arm("ungraphed"), untrained())
    )


def swapped_gradients(**changes: Any) -> Verdict:
    records = [gradients(step, arm="ungraphed", baseline="graphed") for step in (0, 5)]
    return verdict_of(GRADIENTS | SWAPPED, paired(graphed(**changes), arm("ungraphed", gradients=records)))


def against(baseline: str, **changes: Any) -> Verdict:
    """Return the verdict on a trajectory compared with another arm, whose frozen tensors have other bits."""
    run = trajectory_run()
    run.arms[baseline] = twice(baseline, frozen="another format", **changes)
    return verdict_of(TRAJECTORY | {"baseline": baseline}, run)


def gradients_of_another_system() -> Verdict:
    records = [gradients(step, baseline="other_system") for step in (0, 5)]
    run = paired(arm("other_system", frozen="another format"), graphed(gradients=records))
    return verdict_of(GRADIENTS | {"baseline": "other_system"}, run)


def declared_uncaptured() -> Verdict:
    """Return the verdict of a claim about a CUDA graph if the candidate is declared uncaptured and has no record."""
    claim = {"candidate": "synchronizing", "mechanism": "cuda_graph"}
    return verdict_of(TRAJECTORY | claim, paired(arm("synchronizing"), *twice("ungraphed"), untrained()))


def dead_without_a_phase() -> Verdict:
    death = Death(cause="signal", detail="signal 9", phase="", stack="")
    return verdict_of(TRAJECTORY, paired(death=death))


def repeated_graphs(third: ArmEvidence | None = None) -> Verdict:
    runs = [graphed(), graphed(replica=1), third or graphed(replica=2)]
    return verdict_of(REPEATED | {"candidate": "graphed"}, paired(*runs))


def repeated_with(second: ArmEvidence, third: ArmEvidence, *others: ArmEvidence, **claim: Any) -> Verdict:
    """Return the verdict on a correct first run of `ungraphed` and these further runs."""
    return verdict_of(REPEATED | claim, paired(arm("ungraphed"), second, third, *others))


def unrepeated() -> RunEvidence:
    """Return a run in which the baseline runs once, so that its noise is unknown."""
    run = trajectory_run()
    return dataclasses.replace(run, arms=run.arms | {"ungraphed": run.arms["ungraphed"][:1]})


EFFECT = {"control": "untrained", "last": 2, "at_least": 0.2}
ROLES: dict[str, list[Case]] = {
    "trajectory_match": [
        Case("a captured baseline", "held", swapped_trajectory),
        Case("a captured baseline that never was", "candidate_not_captured", lambda: swapped_trajectory(capture=NEVER)),
        Case("a system of its own", "held", lambda: against("other_system")),
        Case("the contract's system by its name", "unequal_start", lambda: against("same_system")),
        Case("a claim's mechanism and no capture", "evidence_missing", declared_uncaptured),
        Case("dead before any phase", "worker_signal", dead_without_a_phase),
        Case(
            "NaN in the repetition",
            "non_finite",
            lambda: trajectory(repetition=arm("ungraphed", changed(2, math.nan), replica=1)),
        ),
        Case(
            "NaN in the candidate before the baseline",
            "non_finite",
            lambda: trajectory(graphed(changed(3, math.nan)), arm("ungraphed", changed(7, math.nan))),
        ),
        Case("no repetition", "evidence_missing", lambda: verdict_of(TRAJECTORY, unrepeated())),
    ],
    "repeatability": [
        Case("three captured runs", "held", repeated_graphs),
        Case(
            "the others agree with each other",
            "differs",
            lambda: repeated_with(arm("ungraphed", nudged(7)), arm("ungraphed", nudged(7))),
        ),
        Case(
            "the second run is the worst",
            "exceeds_tolerance",
            lambda: repeated_with(arm("ungraphed", LOSSES + 0.5), arm("ungraphed", LOSSES + 0.25), equality="within"),
        ),
        Case(
            "with a training effect",
            "held",
            lambda: repeated_with(
                arm("ungraphed"), arm("ungraphed"), untrained(), guards={"steps": STEPS, "training_effect": EFFECT}
            ),
        ),
    ],
    "gradient_match": [
        Case("a captured baseline", "held", swapped_gradients),
        Case("a captured baseline that never was", "candidate_not_captured", lambda: swapped_gradients(capture=NEVER)),
        Case("a system of its own", "held", gradients_of_another_system),
        Case("no digest of the baseline's", "evidence_missing", lambda: matched(A, unlike(0.0, baseline_digest=None))),
        Case("no size of the baseline's", "evidence_missing", lambda: matched(A, unlike(0.0, baseline_max_abs=None))),
        Case("more tensors in the candidate", "tensors_missing", lambda: matched(execution={"tensors": 3})),
        Case(
            "no tensor at all",
            "vacuous_parameters_unchanged",
            lambda: matched(execution=all_steps() | {"tensors": 0}),
        ),
        Case("no threshold", "held", lambda: matched(claim={"clipped_norm": None})),
        Case(
            "NaN in both at one step",
            "non_finite",
            lambda: verdict_of(
                GRADIENTS,
                paired(
                    arm("ungraphed", changed(4, math.nan)),
                    graphed(changed(4, math.nan), gradients=[gradients(0), gradients(5)]),
                ),
            ),
        ),
    ],
}
