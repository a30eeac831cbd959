"""List the kinds of claim about series of losses and metrics, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import CONTROL, MISSING_RUN, NO_GUARDS, NO_STEPS
from harness.kinds.kind import Kind

_NOISE = "The baseline's second run shows the baseline's noise, and no claim is about the end of that run."

ROWS = (
    Kind(
        name="trajectory_match",
        model="harness.kinds.trajectory.model:TrajectoryMatch",
        judge="harness.kinds.trajectory.trajectory_match:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        compares="harness.kinds.trajectory.trajectory_match:compared",
        card=("trajectories",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={**CONTROL, "equal_ends.repetition": _NOISE},
    ),
    Kind(
        name="repeatability",
        model="harness.kinds.trajectory.model:Repeatability",
        judge="harness.kinds.trajectory.repeatability:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        compares="harness.kinds.trajectory.repeatability:compared",
        card=("trajectories",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out=CONTROL,
    ),
    Kind(
        name="runs_differ",
        model="harness.kinds.trajectory.model:RunsDiffer",
        judge="harness.kinds.trajectory.repeatability:judge_differing",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        card=("trajectories",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "comparable": "The arms differ in a setting, such as the seed, that may change their batches.",
            "equal_start": "The arms differ in a setting that may change their start.",
            "equal_frozen": "The arms differ in a setting that may change their start.",
            "equal_state": "The arms differ in a setting that may change their start.",
            "equal_ends": "The arms must train differently.",
            "guards": NO_GUARDS,
        },
    ),
)
SECTIONS = ("harness.kinds.trajectory.section:section",)
