"""Cases of what was launched: evidence that passes, with a step that did other work than its graphs'."""

from __future__ import annotations

import math
from typing import Any

from evidence_builders import (
    STEPS,
    TRAJECTORY,
    arm,
    blocks,
    cuda_graph,
    device_work,
    graph,
    graphed,
    paired,
    syncs,
    trajectory_run,
    verdict_of,
    watched_all_along,
)
from judge_cases import Case
from judge_cases_capture import captured, replays, retraced, watched
from judge_cases_throughput import LOSSES, timed

from harness.evidence.arm_records import DetectorReading, DeviceWork, OutsideWork, StepWatch
from harness.evidence.run_records import Telemetry
from harness.judge.verdict import Verdict


def work(**changes: Any) -> DeviceWork:
    return device_work([graph()], **changes)


def other_kernels() -> DeviceWork:
    return other_launches(kernels={"gemm": 8, "decoy": 4})


def other_launches(**changes: Any) -> DeviceWork:
    """Replays of the one graph, a field of the launched work changed."""
    made = work()
    return made.model_copy(update={"launched": [each.model_copy(update=changes) for each in made.launched]})


def eager(seconds: float) -> DeviceWork:
    """A training beside the launches."""
    return work(outside_kernel_seconds=seconds, outside=[OutsideWork(name="gemm", count=9, seconds=seconds)])


def steps(fewest: int, most: int) -> StepWatch:
    return StepWatch(steps=STEPS - 1, fewest_operations=fewest, most_operations=most, busiest_step=6)


def judged_steps(count: int = 0, number: int = STEPS - 1, **changes: Any) -> list[DetectorReading]:
    reading = {"detector": "sync_debug_mode", "count": count, "places": [], "sees_planted": True, "first_step": 3}
    return [DetectorReading.model_validate({**reading, "steps": number, **changes})]


def every_tenth(readings: list[DetectorReading]) -> Verdict:
    """Two replays without a sync, watched beside the judged steps."""
    return watched(replays({"profiler": 0, "sync_debug_mode": 0}, every_step=readings))


def uncaptured_syncs(steps: int = STEPS) -> Verdict:
    """Of an arm without a capture, executed for `steps` steps more under two detectors."""
    counts = {"ungraphed": 0, "synchronizing": 6 * steps}
    claim = {
        "kind": "host_syncs",
        "candidate": {"arm": "ungraphed", "exactly": 0},
        "control": {"arm": "synchronizing", "exactly": 6},
    }
    arms = [
        arm(name, syncs=syncs(name, {"dispatch_mode": count, "fake_pass": count}, steps=steps, every_step=[]))
        for name, count in counts.items()
    ]
    return verdict_of(claim, paired(*arms))


def trajectory(**capture: Any) -> Verdict:
    return verdict_of(TRAJECTORY | {"mechanism": "cuda_graph"}, trajectory_run(graphed(capture=cuda_graph(**capture))))


def timed_with(**capture: Any) -> Verdict:
    return timed(ours=graphed(LOSSES, capture=cuda_graph(**capture)))


def worked(seconds: float) -> dict[str, Any]:
    """Each block, of 20 ms, with so much processor time."""
    made = blocks([0.01] * 4, [0.012] * 4, steps=2)
    return {"blocks": [block.model_copy(update={"processor_seconds": seconds}) for block in made]}


def slow_supervisor() -> Telemetry:
    """The timed phase took 100 s by the supervisor's clock."""
    return watched_all_along([]).model_copy(update={"timed_seconds": 100.0})


LAUNCHED: dict[str, list[Case]] = {
    "capture": [
        Case("another kernel launched", "launched_otherwise", lambda: captured(device_work=other_kernels())),
        Case(
            "a node more launched",
            "launched_otherwise",
            lambda: captured(device_work=other_launches(by_type={"kernel": 13, "memset": 1})),
        ),
        Case("a launch unseen", "launches_differ", lambda: captured(device_work=other_launches(launches=2))),
        Case("no launch in the last steps", "launches_differ", lambda: captured(device_work=work(launched=[]))),
        Case("no replay profiled", "launches_differ", lambda: captured(device_work=work(steps=0, launched=[]))),
        Case("replays unwatched", "replays_unwatched", lambda: captured(device_work=None)),
        Case("steps unwatched", "replays_unwatched", lambda: captured(every_step=None)),
        Case("an eager training beside it", "work_outside_graphs", lambda: captured(device_work=eager(0.03))),
        Case("at the bound", "held", lambda: captured({"outside_share_at_most": 0.5}, device_work=eager(0.03))),
        Case("a little above", "work_outside_graphs", lambda: captured(device_work=eager(0.0016))),
        Case("a little below", "held", lambda: captured(device_work=eager(0.0015))),
        Case("time that is no number", "work_outside_graphs", lambda: captured(device_work=eager(math.nan))),
        Case("endless time", "work_outside_graphs", lambda: captured(device_work=work(launched_seconds=math.inf))),
        Case("one busy step", "work_outside_graphs", lambda: captured(every_step=steps(4, 101))),
        Case("a step at the bound", "held", lambda: captured(every_step=steps(4, 100))),
        Case(
            "a step above its own bound",
            "work_outside_graphs",
            lambda: captured({"outside_operations_at_most": 4}),
        ),
        Case("a traced step twice", "work_outside_graphs", lambda: retraced(every_step=steps(42, 84))),
        Case("a traced step left out", "work_outside_graphs", lambda: retraced(every_step=steps(21, 42))),
        Case("traced steps unwatched", "replays_unwatched", lambda: retraced(every_step=None)),
    ],
    "trajectory_match": [
        Case("an eager training beside it", "candidate_not_captured", lambda: trajectory(device_work=eager(0.03))),
        Case(
            "another kernel launched",
            "candidate_not_captured",
            lambda: trajectory(device_work=other_kernels()),
        ),
        Case("replays unwatched", "replays_unwatched", lambda: trajectory(device_work=None)),
    ],
    "host_syncs": [
        Case("a sync in every tenth step", "sync_count", lambda: every_tenth(judged_steps(1))),
        Case("steps unwatched", "steps_unwatched", lambda: every_tenth([])),
        Case("a step unwatched", "steps_unwatched", lambda: every_tenth(judged_steps(number=STEPS - 2))),
        Case("blind all along", "vacuous_detector_blind", lambda: every_tenth(judged_steps(sees_planted=False))),
        Case(
            "uncaptured, executed once more",
            "held",
            uncaptured_syncs,
        ),
        Case("uncaptured, executed for two steps", "steps_unwatched", lambda: uncaptured_syncs(2)),
    ],
    "throughput_ratio": [
        Case("another kernel launched", "launched_otherwise", lambda: timed_with(device_work=other_kernels())),
        Case("an eager training beside it", "work_outside_graphs", lambda: timed_with(device_work=eager(0.03))),
        Case("replays unwatched", "replays_unwatched", lambda: timed_with(device_work=None)),
        Case("steps not watched one by one", "held", lambda: timed_with(every_step=None)),
        Case(
            "more device time than time",
            "clock_contradicted",
            lambda: timed(timing={"observed_device_seconds": {"graphed": 0.0126}}),
        ),
        Case(
            "as much device time as time",
            "held",
            lambda: timed(timing={"observed_device_seconds": {"graphed": 0.0098}}),
        ),
        Case(
            "more processor time than four processors have",
            "clock_contradicted",
            lambda: timed(timing={"processors": 4, **worked(0.101)}),
        ),
        Case("as much as four processors have", "held", lambda: timed(timing={"processors": 4, **worked(0.099)})),
        Case(
            "a supervisor that waited longer",
            "clock_contradicted",
            lambda: timed(telemetry=slow_supervisor()),
        ),
    ],
}
