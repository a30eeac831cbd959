"""List the kinds of claim about what happens between two steps, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import HALF, MISSING_RUN, NO_GUARDS, NO_STEPS, OLDER
from harness.kinds.kind import Kind

ROWS = (
    Kind(
        name="resume",
        model="harness.kinds.between_steps.model:Resume",
        judge="harness.kinds.between_steps.resume:judge",
        probes={"resume": ("candidate", "baseline", "save_at", "steps_before_load")},
        capabilities=frozenset({"parameters", "inputs"}),
        compares="harness.kinds.between_steps.resume:compared",
        card=("resume",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={**HALF, **OLDER, "guards": NO_GUARDS},
    ),
    Kind(
        name="evaluation",
        model="harness.kinds.between_steps.model:Evaluation",
        judge="harness.kinds.between_steps.evaluation:judge",
        probes={"evaluation": ("candidate", "every", "plain")},
        capabilities=frozenset({"parameters", "inputs"}),
        compares="harness.kinds.between_steps.evaluation:compared",
        card=("evaluation",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "equal_ends.plain": "The values that the plain arm's evaluations return are compared, but not the end of "
            "this arm.",
            **OLDER,
            "guards": NO_GUARDS,
        },
    ),
)
SECTIONS = ("harness.kinds.between_steps.section:sections",)
