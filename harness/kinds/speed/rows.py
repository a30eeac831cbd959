"""List the kinds of claim about speed, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import MISSING_RUN, NO_GUARDS
from harness.kinds.kind import Kind

ROWS = (
    Kind(
        name="throughput_ratio",
        model="harness.kinds.speed.model:ThroughputRatio",
        judge="harness.kinds.speed.throughput_ratio:judge",
        probes={"throughput": ("candidate", "baseline", "blocks", "block_steps")},
        capabilities=frozenset({"parameters", "inputs"}),
        card=("throughput",),
        evidence_faults=(MISSING_RUN,),
        leaves_out={"guards": NO_GUARDS},
    ),
)
SECTIONS = ("harness.kinds.speed.section:section",)
