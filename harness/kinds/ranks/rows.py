"""List the kinds of claim about ranks, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import MISSING_RUN, NO_GUARDS, NO_STEPS
from harness.kinds.kind import Kind

ROWS = (
    Kind(
        name="ranks_agree",
        model="harness.kinds.ranks.model:RanksAgree",
        judge="harness.kinds.ranks.ranks_agree:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        card=("trajectories",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "uncaptured": "The kind judges the ranks of one arm.",
            "comparable": "Each rank reads different rows.",
            "equal_state": "A rank may have buffers and generators of its own.",
            "guards": NO_GUARDS,
        },
    ),
    Kind(
        name="ranks_match",
        model="harness.kinds.ranks.model:RanksMatch",
        judge="harness.kinds.ranks.ranks_match:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        compares="harness.kinds.ranks.ranks_match:compared",
        card=("trajectories",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "equal_state": "A rank may have buffers and generators of its own.",
            "equal_ends": "Sums over ranks are rounded differently, so ends are compared within `max_end_difference`.",
            "guards": NO_GUARDS,
        },
    ),
)
SECTIONS = ()
