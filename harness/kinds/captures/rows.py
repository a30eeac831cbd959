"""List the kinds of claim about captured steps, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import ALONE, MISSING_RUN, NO_GUARDS, NO_STEPS
from harness.kinds.kind import Kind

_OWN_CONTROL = "A control may wait for the device and do nothing else."
_COUNTED = "Waits are counted in each arm separately, and the arms are not compared."

ROWS = (
    Kind(
        name="capture",
        model="harness.kinds.captures.model:Capture",
        judge="harness.kinds.captures.capture:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs", "capture"}),
        card=("graph", "syncs"),
        evidence_faults=(MISSING_RUN,),
        leaves_out={
            **ALONE,
            "uncaptured": "The kind judges a single captured arm.",
            "guards": NO_GUARDS,
        },
    ),
    Kind(
        name="capture_fallback",
        model="harness.kinds.captures.model:CaptureFallback",
        judge="harness.kinds.captures.capture:judge_fallback",
        probes={"paired": ()},
        capabilities=frozenset({"capture", "parameters", "inputs"}),
        compares="harness.judging.series:of_two_arms",
        card=("trajectories",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "captured": "The candidate's capture must fail.",
            "watched": "The candidate's capture must fail, so that no step is a replay.",
            "guards": NO_GUARDS,
        },
    ),
    Kind(
        name="host_syncs",
        model="harness.kinds.captures.model:HostSyncs",
        judge="harness.kinds.captures.host_syncs:judge",
        probes={"paired": ()},
        capabilities=frozenset({"parameters", "inputs"}),
        card=("syncs",),
        evidence_faults=(MISSING_RUN,),
        leaves_out={
            "comparable": _COUNTED,
            "equal_start": _COUNTED,
            "equal_frozen": _COUNTED,
            "equal_state": _COUNTED,
            "equal_ends": _COUNTED,
            "finite.control": _OWN_CONTROL,
            "trained.control": _OWN_CONTROL,
            "guards": NO_GUARDS,
        },
    ),
    Kind(
        name="long_replay",
        model="harness.kinds.captures.model:LongReplay",
        judge="harness.kinds.captures.long_replay:judge",
        probes={"long_replay": ("candidate", "every")},
        capabilities=frozenset({"parameters", "inputs", "capture"}),
        card=("long_replay",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={"watched": "The kind's steps are timed, and observing each step would be timed too."},
    ),
)
SECTIONS = ("harness.kinds.captures.section:sections", "harness.kinds.captures.section:long_replay_section")
