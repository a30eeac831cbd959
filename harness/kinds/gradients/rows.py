"""List the kinds of claim about gradients, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import MISSING_RUN, NO_GUARDS
from harness.kinds.kind import Kind

ROWS = (
    Kind(
        name="gradient_match",
        model="harness.kinds.gradients.model:GradientMatch",
        judge="harness.kinds.gradients.gradient_match:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs", "gradients"}),
        card=("gradients",),
        evidence_faults=(MISSING_RUN,),
        leaves_out={"repetition": "The baseline's second run only shows whether the baseline's gradients repeat."},
    ),
    Kind(
        name="accumulation",
        model="harness.kinds.gradients.model:Accumulation",
        judge="harness.kinds.gradients.accumulation:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs", "gradients", "state"}),
        card=("gradients",),
        evidence_faults=(MISSING_RUN,),
        leaves_out={
            "equal_ends": "Sums over a batch and over its micro-batches are rounded differently, so gradients and "
            "losses are compared within a bound.",
            "guards": NO_GUARDS,
        },
    ),
)
SECTIONS = ("harness.kinds.gradients.section:section",)
