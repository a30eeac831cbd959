"""Cases of roles and mechanisms: uncaptured candidates, mechanisms, targets, parts of a claim."""

from __future__ import annotations

from typing import Any

from evidence_builders import (
    STEPS,
    TRAJECTORY,
    arm,
    blocks,
    cuda_graph,
    graph,
    graphed,
    paired,
    syncs,
    timed_run,
    traced,
    trajectory_run,
    verdict_of,
)
from judge_cases import Case
from judge_cases_capture import CONTROL, SYNCS, captured, replays, watched
from judge_cases_kernels import OFFLINE, PTX, covered, inventory, kernel, targeted
from judge_cases_roles import NEVER, SWAPPED
from judge_cases_throughput import FASTER, STEADY, launches, timed
from judge_cases_throughput import LOSSES as TIMED_LOSSES

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.verdict import Verdict

HARMLESS = ("kernel", "memcpy", "memset", "graph", "empty", "wait_event", "event_record", "conditional")


def one_of_several_targets(target: str) -> Verdict:
    """Return the verdict on runs for sm_80, this machine's device and sm_90, none of which used a kernel."""
    kinds: list[dict[str, Any]] = [OFFLINE | {"compiled_for": "sm_80"}, {}, OFFLINE]
    runs = [
        RunEvidence(f"run{index}", "kernels", {}, kernels={"graphed": inventory(used=[], **changes)})
        for index, changes in enumerate(kinds)
    ]
    return verdict_of(PTX | {"target": target}, *runs)


def prewarm_run_alone() -> Verdict:
    return verdict_of(PTX, RunEvidence("run", "prewarm", {}, kernels={"graphed": inventory()}))


def uncaptured_and_timed(claim: dict[str, Any], **observed: int) -> Verdict:
    """Return the verdict on eight processes whose uncaptured candidate is half as fast as the captured baseline."""
    timing = {
        "candidate": "ungraphed",
        "baseline": "graphed",
        "blocks": blocks([0.01 * each for each in STEADY], [0.02 * each for each in STEADY], steps=2),
        "observed_graph_launches": observed,
    }
    runs = [timed_run(index, timing=timing) for index in range(8)]
    return verdict_of(FASTER | SWAPPED | {"at_least": 0.4} | claim, *runs, beside=[TRAJECTORY])


def two_pieces() -> ArmEvidence:
    pieces = [graph(label="forward"), graph(label="backward")]
    return arm("graphed", TIMED_LOSSES, capture=cuda_graph(nodes=pieces))


def final_losses_alone() -> Verdict:
    """Return the verdict on losses that differ only before the final step, which alone the trajectory compares."""
    losses = TIMED_LOSSES.copy()
    losses[3] += 1.0
    run = [timed_run(index, ours=graphed(losses)) for index in range(8)]
    return verdict_of(FASTER, *run, beside=[TRAJECTORY | {"compare": "final"}])


def bare(part: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a claim as a part of another claim, without its id."""
    return {key: value for key, value in (part | changes).items() if key != "id"}


def composed(*parts: dict[str, Any], run: RunEvidence | None = None, mechanism: str | None = None) -> Verdict:
    claim = {"kind": "composite", "mechanism": mechanism, "parts": list(parts)}
    return verdict_of(claim, run or trajectory_run())


def by_workload(at_least: float) -> dict[str, Any]:
    """Return a part that requires this training effect on the workload `w`, and hardly any on others."""
    bound = {"otherwise": 0.1, "cases": [{"workload": "w", "value": at_least}]}
    effect = {"control": "untrained", "last": 2, "at_least": bound}
    return bare(TRAJECTORY, guards={"steps": STEPS, "training_effect": effect})


TRACED_RUN = trajectory_run(graphed(capture=traced()))
MECHANISMS: dict[str, list[Case]] = {
    "capture": [
        Case(
            "every node that only works or orders",
            "held",
            lambda: captured({"nodes_at_most": None}, nodes=[graph(by_type=dict.fromkeys(HARMLESS, 2))]),
        ),
        Case("two wrong nodes", "forbidden_node", lambda: captured(nodes=[graph(by_type={"host": 1, "mem_free": 2})])),
    ],
    "host_syncs": [
        Case(
            "an uncaptured candidate",
            "held",
            lambda: verdict_of(
                SYNCS | {"candidate": {"arm": "ungraphed", "exactly": 0}},
                paired(
                    arm("ungraphed", syncs=syncs("ungraphed", {"dispatch_mode": 0, "profiler": 0})),
                    arm("synchronizing", syncs=syncs("synchronizing", CONTROL)),
                ),
            ),
        ),
        Case(
            "a traced candidate whose compiled code is recorded as it is written",
            "held",
            lambda: watched(
                syncs("graphed", {"dispatch_mode": 0, "fake_pass": 0}, replayed=True),
                syncs("synchronizing", {"dispatch_mode": 24, "fake_pass": 24}),
                execution={"capture": traced(as_written=["train.py:7"])},
            ),
        ),
        Case(
            "a control that replays",
            "held",
            lambda: watched(
                control=syncs(
                    "synchronizing", {"dispatch_mode": 0, "profiler": 24, "sync_debug_mode": 24}, replayed=True
                )
            ),
        ),
        Case(
            "a captured control that never was",
            "candidate_not_captured",
            lambda: verdict_of(
                SYNCS | {"candidate": {"arm": "ungraphed", "exactly": 0}, "control": {"arm": "graphed", "exactly": 1}},
                paired(arm("ungraphed"), graphed(capture=NEVER)),
            ),
        ),
        Case(
            "more in fewer steps",
            "sync_count",
            lambda: watched(
                syncs(
                    "graphed",
                    {},
                    readings=[
                        *replays({"profiler": 3}, steps=2).readings,
                        *replays({"sync_debug_mode": 4}, steps=4).readings,
                    ],
                    replayed=True,
                ),
                claim={"candidate": {"arm": "graphed", "exactly": 1}},
            ),
        ),
    ],
    "ptx_target": [
        Case("the device's among several", "held", lambda: one_of_several_targets("device")),
        Case("a named target's among several", "held", lambda: one_of_several_targets("sm_90")),
        Case("of a prewarm run", "held", prewarm_run_alone),
        Case("compiled for the device", "evidence_inconsistent", lambda: targeted({"target": "sm_90"})),
    ],
    "prewarm": [
        Case("two used kernels under one key", "duplicate_key", lambda: covered(used=[kernel(), kernel(name="clip")])),
    ],
    "throughput_ratio": [
        Case("an uncaptured candidate", "held", lambda: uncaptured_and_timed({"mechanism": None}, graphed=4)),
        Case(
            "an uncaptured candidate of a claim about graphs",
            "candidate_not_captured",
            lambda: uncaptured_and_timed({}, graphed=4),
        ),
        Case(
            "a captured candidate of any mechanism",
            "candidate_not_captured",
            lambda: timed(claim={"mechanism": None}, **launches(0)),
        ),
        Case(
            "launches not counted",
            "candidate_not_captured",
            lambda: timed(timing={"observed_graph_launches": {}}),
        ),
        Case("two graphs a step", "held", lambda: timed(ours=two_pieces(), **launches(8))),
        Case("one of two graphs a step", "launches_differ", lambda: timed(ours=two_pieces(), **launches(4))),
        Case("equal at the final step", "held", final_losses_alone),
    ],
    "any": [
        Case(
            "a part's own mechanism",
            "mechanism_missing",
            lambda: composed(bare(TRAJECTORY, mechanism="cuda_graph"), bare(TRAJECTORY), run=TRACED_RUN),
        ),
        Case(
            "the claim's mechanism for its parts",
            "mechanism_missing",
            lambda: composed(bare(TRAJECTORY), bare(TRAJECTORY), run=TRACED_RUN, mechanism="cuda_graph"),
        ),
        Case("parts on a workload", "held", lambda: composed(by_workload(0.9), by_workload(0.2))),
        Case(
            "one part more on a workload",
            "vacuous_training_effect",
            lambda: composed(by_workload(0.9), by_workload(1.0)),
        ),
    ],
}
