"""List the kinds of claim about device memory, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import ALONE, MISSING_RUN, NO_GUARDS, NO_STEPS
from harness.kinds.kind import Kind

ROWS = (
    Kind(
        name="memory_steady",
        model="harness.kinds.memory.model:MemorySteady",
        judge="harness.kinds.memory.judges:judge_steady",
        probes={"paired": (), "recapture": ("after",)},
        capabilities=frozenset({"parameters", "inputs"}),
        card=("memory",),
        evidence_faults=(MISSING_RUN,),
        leaves_out={
            **ALONE,
            "uncaptured": "The kind judges a single captured arm.",
            "guards": NO_GUARDS,
        },
    ),
    Kind(
        name="peak_memory",
        model="harness.kinds.memory.model:PeakMemory",
        judge="harness.kinds.memory.judges:judge_peak",
        probes={"peak_memory": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        card=("peak_memory",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "watched": "A profile of steps would need memory on the device, and this memory would be measured too.",
            "guards": NO_GUARDS,
        },
    ),
)
SECTIONS = ("harness.kinds.memory.section:section",)
