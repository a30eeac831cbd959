"""Cases of throughput_ratio, of composite claims, obstacles and broken judges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from evidence_builders import (
    TRAJECTORY,
    arm,
    blocks,
    contract_of,
    cuda_graph,
    graph,
    graphed,
    paired,
    sample,
    timed_run,
    traced,
    trajectory_run,
    unrecorded,
    verdict_of,
    watched_all_along,
)
from judge_cases import Case
from judge_cases_capture import CAPTURE

from harness.evidence.base import Obstacle
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Block, Telemetry
from harness.judging.reasons import REASONS
from harness.judging.registry import judge_unit, not_in_contract, of_another_contract
from harness.judging.verdict import Status, Verdict

FASTER: dict[str, Any] = {
    "kind": "throughput_ratio",
    "mechanism": "cuda_graph",
    "candidate": "graphed",
    "baseline": "ungraphed",
    "at_least": 1.1,
    "processes": 8,
    "blocks": 4,
    "block_steps": 2,
    "trajectory": "TRAJECTORY",
}
STEADY = [1.0, 1.001, 0.999, 1.0]  # block to block, within a process
PROCESSES = [1.0, 1.002, 0.998, 1.001, 0.999, 1.003, 0.997, 1.0]  # process to process
LOSSES = np.linspace(3.0, 2.0, 8)


def processes(ratio: float, spread: Sequence[float] = PROCESSES) -> list[RunEvidence]:
    """Return runs with this true ratio, one for each process, each multiplied by its factor in `spread`."""
    return [
        timed_run(index, [0.01 * block for block in STEADY], [0.01 * ratio * factor * block for block in STEADY])
        for index, factor in enumerate(spread)
    ]


def apart(run: RunEvidence) -> RunEvidence:
    """Return the run as one in which each arm had its own process, as arms of two commits have."""
    assert run.timing is not None
    return replace(run, timing=run.timing.model_copy(update={"own_processes": True}))


def sleeping(share: float) -> list[Block]:
    """Return blocks whose baseline used neither processor nor device for `share` of the time."""
    made = blocks([0.01 * b for b in STEADY], [0.012 * b for b in STEADY], steps=2)
    return [
        block.model_copy(update={"processor_seconds": (1 - share) * block.seconds})
        if block.arm == "ungraphed"
        else block
        for block in made
    ]


def unwatched(process: int, block: int) -> Verdict:
    """Return the verdict if a block of one process has no processor time; blocks 1 and 2 of four are the baseline's."""
    runs = processes(1.2)
    timing = runs[process].timing
    assert timing is not None
    object.__setattr__(timing.blocks[block], "processor_seconds", None)
    return timed(runs)


def timed(runs: Sequence[RunEvidence] | None = None, claim: dict[str, Any] | None = None, **last: Any) -> Verdict:
    """Return the verdict on eight processes at a ratio of 1.2, the last one with changes; beside: other claims."""
    beside = [TRAJECTORY, *last.pop("beside", [])]
    seven = processes(1.2)[:7] if runs is None else list(runs)
    eighth = [timed_run(7, [0.01 * b for b in STEADY], [0.012 * b for b in STEADY], **last)] if runs is None else []
    return verdict_of(FASTER | (claim or {}), *seven, *eighth, beside=beside)


def machine(**changes: Any) -> dict[str, Any]:
    return {"telemetry": Telemetry(samples=[sample(), sample(**changes)])}


def launches(candidate: int, baseline: int = 0) -> dict[str, Any]:
    return {"timing": {"observed_graph_launches": {"graphed": candidate, "ungraphed": baseline}}}


def torn(**changes: Any) -> dict[str, Any]:
    """Return blocks with the first timed one changed."""
    first, *others = blocks([0.01] * 4, [0.012] * 4, steps=2)
    return {"timing": {"blocks": [first.model_copy(update=changes), *others]}}


ENQUEUE: dict[str, Any] = {"measure": "enqueue", "at_least": 10.0}


def without_enqueue_times() -> Verdict:
    """Return the verdict on blocks of a harness that did not record enqueue times."""
    return timed(claim=ENQUEUE, **torn(enqueue_seconds=None))


def long_on_the_device(seconds: float) -> Verdict:
    """Return the verdict if the device works for `seconds` in a baseline step, which the host enqueues in 12 ms."""
    runs = [
        timed_run(
            index,
            [0.1 * b for b in STEADY],
            [0.12 * b for b in STEADY],
            timing={"observed_device_seconds": {"graphed": 0.01, "ungraphed": seconds}},
        )
        for index in range(8)
    ]
    return timed(runs, ENQUEUE)


def timed_in(ours: str, theirs: str) -> Verdict:
    """Return the verdict on arms that declare these data types, timed under a claim that requires two data types."""
    demanded = {"equality": "within", "precisions": {"candidate": "bfloat16", "baseline": "float32"}}
    runs = [
        timed_run(
            index,
            [0.01 * b for b in STEADY],
            [0.012 * b for b in STEADY],
            ours=graphed(LOSSES, facts={"dtype": ours}, frozen="half"),
            theirs=arm("ungraphed", LOSSES, facts={"dtype": theirs}),
        )
        for index in range(8)
    ]
    return verdict_of(FASTER, *runs, beside=[TRAJECTORY | demanded])


def machine_without_clock() -> dict[str, Any]:
    return {"telemetry": Telemetry(samples=[sample(sm_clock_mhz=None), sample(sm_clock_mhz=None)])}


def wrong_number(what: str, number: float) -> Verdict:
    """Return the verdict if the last process has an impossible number."""
    if what == "a processor time":
        return timed(**torn(processor_seconds=number))
    if what == "a device time":
        return timed(timing={"observed_device_seconds": {"ungraphed": number}})
    return timed(**machine(host_load_per_core=number))


def first_round(*positions: int, arm: str = "ungraphed") -> dict[str, Any]:
    """Return the first round's blocks (candidate, `arm`, `arm`, candidate) at these positions."""
    made = blocks([0.01] * 4, [0.012] * 4, steps=2)
    names = ["graphed", arm, arm, "graphed"]
    moved = [
        block.model_copy(update={"position": position, "arm": name})
        for block, position, name in zip(made[:4], positions, names, strict=True)
    ]
    return {"timing": {"blocks": [*moved, *made[4:]]}}


def helped(arm: str, share: float) -> dict[str, Any]:
    """Return blocks: `arm` has helper threads that worked for `share` of the timed seconds, outside its own blocks."""
    made = blocks([0.01] * 4, [0.012] * 4, steps=2)
    share *= 1 - 1e-9  # rounding
    worked = [
        block.model_copy(update={"untimed_helper_seconds": 0.02 * share if block.arm == arm else 0.0}) for block in made
    ]
    return {"timing": {"blocks": worked}}


def against_captured(capture: dict[str, Any] | None = None, *, recorded: bool = True, **timing: Any) -> Verdict:
    """Return the verdict on an uncaptured arm that is faster than a captured one; timing: of the last process."""
    last = graphed(LOSSES, capture=cuda_graph(**(capture or {})))
    runs = [
        timed_run(
            index,
            [0.012 * factor * block for block in STEADY],
            [0.01 * block for block in STEADY],
            ours=(last if index == 7 else graphed(LOSSES, capture=cuda_graph())) if recorded else unrecorded(last),
            timing={"candidate": "ungraphed", "baseline": "graphed", **(timing if index == 7 else {})},
        )
        for index, factor in enumerate(PROCESSES)
    ]
    claim = {"mechanism": None, "candidate": "ungraphed", "baseline": "graphed"}
    return verdict_of(FASTER | claim, *runs, beside=[TRAJECTORY])


def trained_apart(*trajectories: dict[str, Any]) -> Verdict:
    """Return the verdict if losses differ by more than any claim allows, and the named claim has several parts."""
    common = {key: value for key, value in TRAJECTORY.items() if key != "id"}
    parts = [common | {"equality": "within", "max_abs_difference": 0.1} | each for each in trajectories]
    runs = [
        timed_run(
            index, [0.01 * b for b in STEADY], [0.012 * b for b in STEADY], ours=graphed([3.0, *(LOSSES[1:] + 0.5)])
        )
        for index in range(8)
    ]
    return verdict_of(FASTER, *runs, beside=[{"id": "TRAJECTORY", "kind": "composite", "parts": parts}])


def with_own_copies(equality: str) -> Verdict:
    """Return the verdict on a candidate that starts with additional tensors that its baseline lacks."""
    copies = {state: {"buffers": {"mean": "b"}, "tensors": {"master": "m"}} for state in ("start_state", "end_state")}
    runs = [
        timed_run(index, [0.01 * b for b in STEADY], [0.012 * b for b in STEADY], ours=graphed(LOSSES, **copies))
        for index in range(8)
    ]
    return verdict_of(FASTER, *runs, beside=[TRAJECTORY | {"equality": equality}])


def of_another_system() -> Verdict:
    """Return the verdict on a baseline of another system, with its own formats of frozen tensors and state."""
    runs = []
    for run in processes(1.2):
        timing, [ours], [theirs] = run.timing, run.arms["graphed"], run.arms["ungraphed"]
        assert timing is not None
        text = timing.model_dump_json().replace('"ungraphed"', '"other_system"')
        other = arm("other_system", theirs.series.loss, frozen="another format", end_state={"optimizer": {"m": "m"}})
        arms = {"graphed": [ours], "other_system": [other]}
        runs.append(replace(run, arms=arms, timing=type(timing).model_validate_json(text)))
    baseline = {"baseline": "other_system"}
    return verdict_of(FASTER | baseline, *runs, beside=[TRAJECTORY | baseline])


def uncaptured(device: float = 1e-12, **seen: Any) -> Verdict:
    """Return the verdict on two uncaptured arms on a GPU, with this telemetry at all times; device: of the baseline."""
    runs = []
    for run in processes(1.2):
        timing, [theirs] = run.timing, run.arms["ungraphed"]
        assert timing is not None
        text = timing.model_dump_json().replace('"graphed"', '"synchronizing"')
        timing = type(timing).model_validate_json(text)
        works = {"observed_device_seconds": {"synchronizing": 1e-12, "ungraphed": device}}
        timing = timing.model_copy(update={"observed_graph_launches": {"synchronizing": 0, "ungraphed": 0}, **works})
        arms = {"synchronizing": [arm("synchronizing", theirs.series.loss)], "ungraphed": [theirs]}
        runs.append(replace(run, arms=arms, timing=timing, telemetry=watched_all_along(timing.blocks, **seen)))
    candidate = {"mechanism": None, "candidate": "synchronizing"}
    return verdict_of(FASTER | candidate, *runs, beside=[TRAJECTORY | candidate])


THROUGHPUT_CASES = [
    Case("faster", "held", timed),
    Case("faster than another system", "held", of_another_system),
    Case("faster with copies of its own, within a bound", "held", lambda: with_own_copies("within")),
    Case("faster with copies of its own", "unequal_start", lambda: with_own_copies("bitwise")),
    Case(
        "other losses, and a bound of another metric first",
        "exceeds_tolerance",
        lambda: trained_apart({"metric": "accuracy", "max_abs_difference": 100.0}, {}),
    ),
    Case(
        "other losses, and a bound of the first step first",
        "exceeds_tolerance",
        lambda: trained_apart({"compare": "first"}, {}),
    ),
    Case("slower", "too_slow", lambda: timed(processes(1.0))),
    Case("faster than another commit", "held", lambda: timed([apart(run) for run in processes(1.2)])),
    Case("faster in another precision", "held", lambda: timed_in("bfloat16", "float32")),
    Case("timed in one precision", "vacuous_precision", lambda: timed_in("float32", "float32")),
    Case("enqueued twelve times as fast", "held", lambda: timed(claim=ENQUEUE)),
    Case("enqueued nine times as fast", "too_slow", lambda: timed(processes(0.9), ENQUEUE)),
    Case("enqueued about as fast as demanded", "undecided_ratio", lambda: timed(processes(1.0), ENQUEUE)),
    Case("no time to enqueue", "evidence_missing", without_enqueue_times),
    Case(
        "longer to enqueue than the block",
        "evidence_inconsistent",
        lambda: timed(claim=ENQUEUE, **torn(enqueue_seconds=1.0)),
    ),
    Case(
        "enqueued in a time that is NaN",
        "evidence_inconsistent",
        lambda: timed(claim=ENQUEUE, **torn(enqueue_seconds=math.nan)),
    ),
    Case("enqueued in no time", "evidence_inconsistent", lambda: timed(claim=ENQUEUE, **torn(enqueue_seconds=0.0))),
    Case("a device as fast as the host", "held", lambda: long_on_the_device(0.12)),
    Case("a device slower than the host", "host_waited", lambda: long_on_the_device(0.121)),
    Case("in between", "undecided_ratio", lambda: timed(processes(1.1))),
    Case("too few processes", "too_few_processes", lambda: timed(processes(1.2)[:6], {"processes": 6})),
    Case("a process missing", "evidence_missing", lambda: timed(processes(1.2)[:7])),
    Case(
        "timings missing", "evidence_missing", lambda: timed([*processes(1.2)[:7], RunEvidence("r", "throughput", {})])
    ),
    Case("no trajectory claim", "evidence_missing", lambda: timed(claim={"trajectory": "OTHER"})),
    Case("other losses", "differs", lambda: timed(ours=graphed(LOSSES + 1e-9))),
    Case("another end", "end_differs", lambda: timed(ours=graphed(LOSSES, end_state={"buffers": {"mean": "x"}}))),
    Case("no losses", "vacuous_steps", lambda: timed(ours=graphed([]), theirs=arm("ungraphed", []))),
    Case(
        "unrecorded steps",
        "evidence_inconsistent",
        lambda: timed(ours=graphed(LOSSES[:4]), theirs=arm("ungraphed", LOSSES[:4])),
    ),
    Case("no launch", "candidate_not_captured", lambda: timed(**launches(0))),
    Case("a launch missing", "launches_differ", lambda: timed(**launches(3))),
    Case("no launch watched", "launches_unobserved", lambda: timed(timing={"observed_steps": 0})),
    Case(
        "the baseline's launches unseen",
        "launches_unobserved",
        lambda: timed(timing={"observed_graph_launches": {"graphed": 4}}),
    ),
    Case("a captured baseline", "vacuous_baseline_captured", lambda: timed(**launches(4, 4))),
    Case("faster than a captured arm", "held", against_captured),
    Case(
        "faster than an arm that was captured in two pieces",
        "held",
        lambda: against_captured({"nodes": [graph(), graph()]}, observed_graph_launches={"ungraphed": 0, "graphed": 8}),
    ),
    Case(
        "faster than an arm that was to be captured",
        "candidate_not_captured",
        lambda: against_captured(
            {"captured": False, "nodes": []}, observed_graph_launches={"ungraphed": 0, "graphed": 0}
        ),
    ),
    Case(
        "faster than an arm that was captured for some steps",
        "candidate_not_captured",
        lambda: against_captured(observed_graph_launches={"ungraphed": 0, "graphed": 2}),
    ),
    Case(
        "faster than an arm whose launches were not seen",
        "launches_unobserved",
        lambda: against_captured(observed_graph_launches={}),
    ),
    Case("faster than an arm without a capture record", "evidence_missing", lambda: against_captured(recorded=False)),
    Case(
        "not captured",
        "candidate_not_captured",
        lambda: timed(ours=graphed(LOSSES, capture=cuda_graph(captured=False))),
    ),
    Case("no capture record", "evidence_missing", lambda: timed(ours=unrecorded(graphed(LOSSES)))),
    Case("graphs uncounted", "evidence_missing", lambda: timed(ours=graphed(LOSSES, capture=cuda_graph(nodes=[])))),
    Case("traced", "mechanism_missing", lambda: timed(ours=graphed(LOSSES, capture=traced()))),
    Case("steps next to the timed ones", "held", lambda: timed(ours=graphed(LOSSES, steps_called=18))),
    Case("no time", "evidence_inconsistent", lambda: timed(**torn(seconds=0.0))),
    Case("a pace of no time", "evidence_inconsistent", lambda: timed(**torn(pace=0.0))),
    Case("NaN time", "evidence_inconsistent", lambda: timed(**torn(seconds=math.nan))),
    Case("more timed than recorded", "evidence_inconsistent", lambda: timed(**torn(arm="ungraphed"))),
    Case("not interleaved", "evidence_inconsistent", lambda: timed(**first_round(0, 2, 3, 1))),
    Case("a position left out", "evidence_inconsistent", lambda: timed(**first_round(0, 1, 2, 4))),
    Case("a third arm's blocks", "evidence_inconsistent", lambda: timed(**first_round(0, 1, 2, 3, arm="untrained"))),
    Case(
        "a block missing",
        "evidence_inconsistent",
        lambda: timed(timing={"blocks": blocks([0.01] * 4, [0.012] * 4, steps=2)[1:]}),
    ),
    Case("short blocks", "evidence_missing", lambda: timed(**torn(steps=1))),
    Case("too few blocks", "evidence_missing", lambda: timed(claim={"blocks": 6})),
    Case("no telemetry", "telemetry_missing", lambda: timed(telemetry=Telemetry(samples=[]))),
    Case("processes unseen", "telemetry_missing", lambda: timed(**machine(foreign_processes=-1))),
    Case("a foreign process", "limits_exceeded", lambda: timed(**machine(foreign_processes=1))),
    Case("throttled", "limits_exceeded", lambda: timed(**machine(throttle_reasons=["hw_thermal_slowdown"]))),
    Case("at the power cap", "held", lambda: timed(**machine(throttle_reasons=["sw_power_cap"]))),
    Case(
        "capped and hot",
        "limits_exceeded",
        lambda: timed(**machine(throttle_reasons=["sw_power_cap", "sw_thermal_slowdown"])),
    ),
    Case("clocks", "limits_exceeded", lambda: timed(**machine(sm_clock_mhz=1800.0))),
    Case("a busy host", "limits_exceeded", lambda: timed(**machine(host_load_per_core=1.5))),
    Case("the candidate's threads worked untimed", "works_outside_blocks", lambda: timed(**helped("graphed", 0.021))),
    Case("the baseline's threads worked untimed", "works_outside_blocks", lambda: timed(**helped("ungraphed", 0.021))),
    Case("untimed work of one block unknown", "telemetry_missing", lambda: timed(**torn(untimed_helper_seconds=None))),
    Case(
        "untimed work that is NaN",
        "works_outside_blocks",
        lambda: timed(**torn(untimed_helper_seconds=math.nan)),
    ),
    Case("threads that worked a little untimed", "held", lambda: timed(**helped("graphed", 0.02))),
    Case(
        "untimed work and no limit that a contract can loosen",
        "works_outside_blocks",
        lambda: timed(
            claim={"limits": {"host_load_per_core": 1e6, "baseline_idle_share": 1.0}}, **helped("graphed", 1.0)
        ),
    ),
    Case(
        "untimed work of a candidate that is too slow",
        "works_outside_blocks",
        lambda: timed([*processes(1.0)[:7], timed_run(7, [0.01] * 4, [0.01] * 4, **helped("ungraphed", 1.0))]),
    ),
    Case("a sleeping baseline", "baseline_idle", lambda: timed(timing={"blocks": sleeping(0.2)})),
    Case("a baseline that waits a little", "held", lambda: timed(timing={"blocks": sleeping(0.05)})),
    Case(
        "a baseline that waits for a busy device",
        "held",
        lambda: timed(timing={"blocks": sleeping(0.5), "observed_device_seconds": {"ungraphed": 0.0115}}),
    ),
    Case("the baseline's processor unseen in the first process", "telemetry_missing", lambda: unwatched(0, 1)),
    Case("the baseline's processor unseen in the last process", "telemetry_missing", lambda: unwatched(7, 2)),
    Case("the candidate's processor unseen", "held", lambda: unwatched(0, 0)),
    Case("no clock of the GPU for arms without a capture", "telemetry_missing", lambda: uncaptured(sm_clock_mhz=None)),
    Case("arms without a capture", "held", uncaptured),
    Case("a device time of the baseline that is NaN", "telemetry_missing", lambda: uncaptured(math.nan)),
    Case("no clock of the GPU", "telemetry_missing", lambda: timed(**machine_without_clock())),
    Case("a clock seen at times", "held", lambda: timed(**machine(sm_clock_mhz=None))),
    Case("a block without processor time", "held", lambda: timed(**torn(processor_seconds=0.0))),
    Case("no time on the device", "device_work_unobserved", lambda: wrong_number("a device time", 0.0)),
    Case(
        "the device's time not recorded",
        "device_work_unobserved",
        lambda: timed(timing={"observed_device_seconds": {}}),
    ),
    Case(
        "a device time of the candidate that is NaN",
        "telemetry_missing",
        lambda: timed(timing={"observed_device_seconds": {"graphed": math.nan}}),
    ),
    Case(
        "no time of the candidate on the device",
        "device_work_unobserved",
        lambda: timed(timing={"observed_device_seconds": {"graphed": 0.0}}),
    ),
    *(
        Case(f"{what} of {number}", reason, partial(wrong_number, what, number))
        for what, reason, numbers in (
            ("a processor time", "evidence_inconsistent", (math.nan, math.inf)),
            ("a device time", "telemetry_missing", (math.nan, math.inf)),
            ("a load", "limits_exceeded", (math.nan, math.inf)),
        )
        for number in numbers
    ),
]


def composite(*runs: RunEvidence) -> Verdict:
    """Return the verdict on capture and trajectory of one run."""
    parts = [{key: value for key, value in part.items() if key != "id"} for part in (CAPTURE, TRAJECTORY)]
    return verdict_of({"kind": "composite", "mechanism": "cuda_graph", "parts": parts}, *runs)


def obstructed(reason: str) -> Verdict:
    contract = contract_of(TRAJECTORY)
    return judge_unit(contract, contract.claims[0], "w", [], Obstacle(reason=reason, message="a sentence"))


def of_something_else() -> Verdict:
    contract = contract_of(TRAJECTORY | {"mechanism": "cuda_graph"})
    return of_another_contract(contract, contract.claims[0], "w", "workload.seed: 1 in the contract, 0 in the run")


def broken() -> Verdict:
    """Return the verdict if the evidence has the baseline's name without an execution."""
    run = trajectory_run()
    series = run.arms["ungraphed"][0].series
    object.__setattr__(series, "loss", ["no", "numbers"] * 5)
    return verdict_of(TRAJECTORY, run)


OBSTACLES = [
    *(code for code, reason in REASONS.items() if reason.status is Status.NOT_RUN),
    "system_not_described",
]
OTHER_CASES = [
    Case("all parts hold", "held", lambda: composite(trajectory_run())),
    Case("one part fails", "differs", lambda: composite(trajectory_run(graphed(np.linspace(3.0, 1.9, 10))))),
    Case(
        "the worst part", "not_captured", lambda: composite(trajectory_run(graphed(capture=cuda_graph(captured=False))))
    ),
    Case(
        "ERROR is worse than FAIL",
        "evidence_missing",
        lambda: composite(paired(graphed(capture=cuda_graph(captured=False)))),
    ),
    Case("judge fails", "judge_error", broken),
    *(Case(f"obstacle {code}", code, lambda code=code: obstructed(code)) for code in OBSTACLES),  # type: ignore[misc]
    Case(
        "another contract's evidence",
        "evidence_of_another_contract",
        of_something_else,
    ),
    Case("another contract's unit", "not_in_contract", lambda: not_in_contract("c", "X-001", "w")),
    Case("unknown obstacle", "not_available", lambda: obstructed("something_else")),
]
