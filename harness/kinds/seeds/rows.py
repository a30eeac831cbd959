"""List the kinds of claim about several seeds, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import CONTROL, HALF, MISSING_RUN, NO_STEPS
from harness.kinds.kind import Kind

ROWS = (
    Kind(
        name="not_worse",
        model="harness.kinds.seeds.model:NotWorse",
        judge="harness.kinds.seeds.not_worse:judge",
        probes={"seeds": ("seeds",), "resumed_seeds": ("candidate", "seeds", "save_at")},
        capabilities=frozenset({"parameters", "inputs"}),
        card=("seeds",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            **CONTROL,
            **HALF,
            "watched.half": "The kind has many processes, and a profile would take seconds in each process.",
            "trained.half": "The two halves are judged together, as one training.",
            "equal_ends": "The arms may train differently, because a metric is compared over seeds.",
        },
    ),
)
SECTIONS = ("harness.kinds.seeds.section:section",)
