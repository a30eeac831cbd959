"""Cases of peak_memory: two processes that trained alike within the bound, with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evidence_builders import LOSSES, TRAJECTORY, arm, cuda_graph, graphed, traced, verdict_of
from judge_cases import Case

from harness.evidence.arm_records import CaptureEvidence, MemoryPeak, PeakMemoryEvidence
from harness.evidence.run_evidence import ArmEvidence, Death, RunEvidence
from harness.judging.verdict import Verdict

GIB = 2**30
MEMORY: dict[str, Any] = {
    "kind": "peak_memory",
    "mechanism": "cuda_graph",
    "candidate": "graphed",
    "baseline": "ungraphed",
    "at_most_gib": 2.0,
    "trajectory": "TRAJECTORY",
}
RATIO = {"at_most_gib": None, "at_most_ratio": 1.25}


def peak(allocated: float = 2.0, **changes: Any) -> MemoryPeak:
    """Return a peak of `allocated` GiB; torch reserved 0.5 GiB more, and the device had 0.5 GiB beyond that."""
    return MemoryPeak(
        **{
            "allocated_bytes": int(allocated * GIB),
            "reserved_bytes": int((allocated + 0.5) * GIB),
            "device_bytes": int((allocated + 1) * GIB),
            "outside_bytes": GIB // 2,
            "samples": 40,
            **changes,
        }
    )


def peaks(name: str, opening: MemoryPeak | None = None, steps: MemoryPeak | None = None, **changes: Any) -> Any:
    """Return the peaks of an arm that took 1 GiB to open and 2 GiB for its steps."""
    return PeakMemoryEvidence(
        **{
            "arm": name,
            "replica": 0,
            "opening": opening or peak(1.0),
            "steps": steps or peak(),
            "resets": 0,
            "lost_peaks": 0,
            "foreign_processes": 0,
            "allocator": "native",
            "allocator_settings": "",
            **changes,
        }
    )


def alone(execution: ArmEvidence, seen: PeakMemoryEvidence | None, **changes: Any) -> RunEvidence:
    """Return the run of one arm."""
    name = execution.start.arm
    arms = {name: [replace(execution, peak_memory=seen)]}
    return RunEvidence(**{"run_id": f"run of {name}", "probe": "peak_memory", "arms": arms, **changes})


def mine(*given: Any, **changes: Any) -> ArmEvidence:
    """Return the candidate's execution, of which the probe watches no replay."""
    return graphed(*given, **{"capture": unwatched(), **changes})


def unwatched(**changes: Any) -> CaptureEvidence:
    return cuda_graph(**{"device_work": None, "every_step": None, "observed_graph_launches": None, **changes})


def measured(
    claim: Mapping[str, Any] | None = None,
    ours: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] | None = None,
    candidate: ArmEvidence | None = None,
    baseline: ArmEvidence | None = None,
    trajectory: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Verdict:
    """Return the verdict on two processes. ours, theirs: changes of the peaks. changes: of the candidate's run."""
    runs = [
        alone(baseline or arm("ungraphed"), peaks("ungraphed", **(theirs or {}))),
        alone(candidate or mine(), peaks("graphed", **(ours or {})), **changes),
    ]
    return verdict_of(MEMORY | dict(claim or {}), *runs, beside=[TRAJECTORY | dict(trajectory or {})])


def unrecorded() -> Verdict:
    runs = [alone(arm("ungraphed"), peaks("ungraphed")), alone(graphed(), None)]
    return verdict_of(MEMORY, *runs, beside=[TRAJECTORY])


def beside_captured(**changes: Any) -> Verdict:
    """Return the verdict on an uncaptured arm that may use no more memory than a captured one, with these changes."""
    claim = {"mechanism": None, "candidate": "ungraphed", "baseline": "graphed"}
    runs = [alone(mine(capture=unwatched(**changes)), peaks("graphed")), alone(arm("ungraphed"), peaks("ungraphed"))]
    return verdict_of(MEMORY | RATIO | claim, *runs, beside=[TRAJECTORY])


def without_state(execution: ArmEvidence) -> ArmEvidence:
    return replace(execution, start=execution.start.model_copy(update={"state": None}))


DEAD: dict[str, Any] = {"death": Death(cause="signal", detail="SIGKILL", phase="graphed: steps", stack="")}

PEAK_CASES = [
    Case("at the bound", "held", measured),
    Case("over the steps alone", "held", lambda: measured({"over": "steps"}, {"opening": peak(8.0)})),
    Case("reserved at the bound", "held", lambda: measured({"of": "reserved", "at_most_gib": 2.5})),
    Case("at the ratio", "held", lambda: measured(RATIO, {"steps": peak(2.5)})),
    Case("a peak that a reset did not hide", "held", lambda: measured(ours={"resets": 3})),
    Case("beyond the bound", "peak_memory", lambda: measured(ours={"steps": peak(2.5)})),
    Case("beyond the bound in the opening", "peak_memory", lambda: measured(ours={"opening": peak(4.0)})),
    Case("reserved beyond the bound", "peak_memory", lambda: measured({"of": "reserved"})),
    Case(
        "beyond the bound, and others on the device",
        "peak_memory",
        lambda: measured(ours={"steps": peak(4.0), "foreign_processes": 1}),
    ),
    Case("beyond the ratio", "peak_ratio", lambda: measured(RATIO, {"steps": peak(3.0)})),
    Case(
        "beyond the ratio of steps",
        "peak_ratio",
        lambda: measured(RATIO | {"over": "steps"}, {"steps": peak(3.0)}, {"opening": peak(4.0)}),
    ),
    Case(
        "a baseline whose peak fell", "peak_unknown", lambda: measured(RATIO, {"steps": peak(3.0)}, {"lost_peaks": 1})
    ),
    Case(
        "memory behind torch's back",
        "memory_outside_allocator",
        lambda: measured(ours={"steps": peak(outside_bytes=2 * GIB)}),
    ),
    Case("more context than allowed", "memory_outside_allocator", lambda: measured({"outside_at_most_gib": 0.25})),
    Case("a peak that fell", "peak_unknown", lambda: measured(ours={"lost_peaks": 1})),
    Case(
        "a device that was not read",
        "device_memory_unseen",
        lambda: measured(ours={"steps": peak(outside_bytes=None, device_bytes=None, samples=0)}),
    ),
    Case(
        "a device of which no sample was taken",
        "device_memory_unseen",
        lambda: measured(ours={"opening": peak(1.0, samples=0)}),
    ),
    Case("others on the device", "device_memory_unseen", lambda: measured(theirs={"foreign_processes": 2})),
    Case("unknown others on the device", "device_memory_unseen", lambda: measured(ours={"foreign_processes": None})),
    Case(
        "memory behind torch's back, perhaps another's",
        "device_memory_unseen",
        lambda: measured(ours={"steps": peak(outside_bytes=2 * GIB), "foreign_processes": 1}),
    ),
    Case(
        "no memory",
        "vacuous_no_memory",
        lambda: measured(ours={"opening": peak(0.0, reserved_bytes=0), "steps": peak(0.0, reserved_bytes=0)}),
    ),
    Case(
        "no memory in the steps alone",
        "vacuous_no_memory",
        lambda: measured({"over": "steps"}, {"steps": peak(0.0, reserved_bytes=0)}),
    ),
    Case(
        "no memory in the steps of the baseline",
        "vacuous_no_memory",
        lambda: measured(RATIO | {"over": "steps"}, None, {"steps": peak(0.0, reserved_bytes=0)}),
    ),
    Case(
        "no step",
        "vacuous_steps",
        lambda: measured(candidate=mine([], steps_called=0), baseline=arm("ungraphed", [])),
    ),
    Case("other losses", "differs", lambda: measured(candidate=mine(LOSSES + 0.01))),
    Case(
        "losses beyond the tolerance",
        "exceeds_tolerance",
        lambda: measured(candidate=mine(LOSSES + 0.5), trajectory={"equality": "within"}),
    ),
    Case("next to a captured arm", "held", beside_captured),
    Case(
        "next to an arm that was to be captured",
        "candidate_not_captured",
        lambda: beside_captured(captured=False, replays=0, failure="a sync"),
    ),
    Case("traced", "mechanism_missing", lambda: measured(candidate=mine(capture=traced()))),
    Case("no such trajectory", "evidence_missing", lambda: measured(trajectory={"id": "ANOTHER"})),
    Case("peaks unrecorded", "evidence_missing", unrecorded),
    Case(
        "no process of the baseline",
        "evidence_missing",
        lambda: verdict_of(MEMORY, alone(graphed(), peaks("graphed")), beside=[TRAJECTORY]),
    ),
    Case("a process that died", "worker_signal", lambda: measured(**DEAD)),
]
