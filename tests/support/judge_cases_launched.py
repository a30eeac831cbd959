"""Cases of launched work: evidence that passes, changed by a step that did other work than its graphs'."""

from __future__ import annotations

import math
from typing import Any

from evidence_builders import (
    STEPS,
    TRAJECTORY,
    arm,
    blocks,
    contract_of,
    cuda_graph,
    device_work,
    graph,
    graphed,
    paired,
    syncs,
    timed_run,
    traced,
    trajectory_run,
    verdict_of,
    watch_of,
    watched_all_along,
)
from judge_cases import Case
from judge_cases_capture import CAPTURE, captured, replays, retraced, watched
from judge_cases_throughput import ENQUEUE, LOSSES, timed

from harness.evidence.arm_records import DetectorReading, DeviceWork, GhostReplay, GraphNodes, OutsideWork, StepWatch
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Telemetry
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict


def work(**changes: Any) -> DeviceWork:
    return device_work([graph()], **changes)


def other_kernels() -> DeviceWork:
    return other_launches(kernels={"gemm": 8, "decoy": 4})


def other_launches(**changes: Any) -> DeviceWork:
    """Return replays of the one graph, with a field of the launched work changed."""
    made = work()
    return made.model_copy(update={"launched": [each.model_copy(update=changes) for each in made.launched]})


def eager(seconds: float) -> DeviceWork:
    """Return device work with `seconds` of training outside the launches."""
    return work(outside_kernel_seconds=seconds, outside=[OutsideWork(name="gemm", count=9, seconds=seconds)])


def averaging() -> DeviceWork:
    """Return device work with as much work after the steps as in their launches."""
    return work(after_kernel_seconds=0.03)


def ghost(**changes: Any) -> GhostReplay:
    """Return a check that replays compute all outputs, with changes."""
    seen = {"replays": 1, "moves": True, "moves_alone": True, "alone_reads": True, "stays": True}
    return GhostReplay.model_validate(seen | changes)


def outside(*named: str) -> GhostReplay:
    """Return a check in which these outputs are equal with and without replays."""
    return ghost(stays=False, reads=True, outside=len(named), named=[*named])


def on_one_batch(**changes: Any) -> GhostReplay:
    """Return a check in which all steps have one batch and the update runs outside the replays."""
    return ghost(**({"stays": False, "alone_reads": None, "moves_alone": False} | changes))


def outside_update() -> GhostReplay:
    """Return a check in which the update runs outside the replays."""
    return ghost(stays=False, reads=True, moves_alone=False)


def over(**changes: Any) -> GhostReplay:
    """Return a check in which the step was refused, so that only replays alone were tried."""
    return GhostReplay(replays=1, failure="no more data", **changes)


def steps(fewest: int, most: int, number: int = STEPS - 1, **changes: Any) -> StepWatch:
    return StepWatch(steps=number, fewest_operations=fewest, most_operations=most, busiest_step=6, **changes)


def afterwards(most: int) -> StepWatch:
    """Return the watch of a traced step of 40 operations plus 2 that copy the batch in, and `most` after it."""
    return steps(42, 42, fewest_replayed=40, most_after=most)


def judged_steps(count: int = 0, number: int = STEPS - 1, **changes: Any) -> list[DetectorReading]:
    reading = {"detector": "sync_debug_mode", "count": count, "places": [], "sees_planted": True, "first_step": 3}
    return [DetectorReading.model_validate({**reading, "steps": number, **changes})]


def every_tenth(readings: list[DetectorReading], **changes: Any) -> Verdict:
    """Return the verdict on two replays without a sync, together with these readings of the judged steps."""
    return watched(replays({"profiler": 0, "sync_debug_mode": 0}, every_step=readings), **changes)


def at_most_one(count: int, **changes: Any) -> Verdict:
    """Return the verdict if one sync is allowed in each step and the judged steps have `count` in total."""
    return every_tenth(judged_steps(count, **changes), claim={"candidate": {"arm": "graphed", "at_most": 1}})


def uncaptured_syncs(steps: int = STEPS) -> Verdict:
    """Return the verdict on an arm without a capture, executed for `steps` more steps with two detectors."""
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


def in_pieces(*launches: int, shapes: int = 1) -> Verdict:
    """Return the verdict on forward and backward graphs of each shape, with these launches in three steps."""
    nodes = [
        graph(
            label=f"{piece} {shape}",
            kernels={piece: 11 + shape, "clip": 1},
            by_type={"kernel": 12 + shape},
            clipped_tensors=6,
        )
        for shape in range(shapes)
        for piece in ("forward", "backward")
    ]
    made = device_work(nodes).launched
    seen = [each.model_copy(update={"launches": times}) for each, times in zip(made, launches, strict=True) if times]
    return captured(
        {"nodes_at_most": None, "captures": shapes},
        captures=shapes,
        nodes=nodes,
        observed_graph_launches=6,
        device_work=work(launched=seen),
    )


def traced_trajectory(**capture: Any) -> Verdict:
    return verdict_of(TRAJECTORY | {"mechanism": "traced"}, trajectory_run(graphed(capture=traced(**capture))))


def in_shapes(seen: int, captures: int) -> Verdict:
    """Return the verdict on a schedule of three lengths with `captures` captures and `seen` watched steps."""
    nodes = [graph(label=f"shape {each}") for each in range(captures)]
    capture = cuda_graph(captures=captures, nodes=nodes, device_work=work(), every_step=watch_of(seen))
    contract = contract_of(TRAJECTORY | {"mechanism": "cuda_graph"})
    lengths = contract.workloads["w"].model_copy(update={"seq_len": [32, 48, 64]})
    scheduled = contract.model_copy(update={"workloads": {"w": lengths}})
    return judge_unit(scheduled, scheduled.claims[0], "w", [trajectory_run(graphed(capture=capture))])


def in_a_contract(share: float, claim: dict[str, Any], seconds: float = 0.02) -> Verdict:
    """Return the verdict on a trajectory with `seconds` outside 30 ms of graphs; CAPTURE claims allow `share`."""
    declared = [{"kind": "capture", "candidate": "graphed", "outside_share_at_most": each} for each in (share, 0.9)]
    beside = [{"id": f"CAPTURE-{number}"} | each for number, each in enumerate(declared)]
    run = trajectory_run(graphed(capture=cuda_graph(device_work=eager(seconds))))
    return verdict_of(TRAJECTORY | {"mechanism": "cuda_graph"} | claim, run, beside=beside)


def timed_with(*beside: dict[str, Any], **capture: Any) -> Verdict:
    return timed(beside=beside, ours=graphed(LOSSES, capture=cuda_graph(**capture)))


def worked(seconds: float) -> dict[str, Any]:
    """Return blocks of 20 ms, each with this processor time."""
    made = blocks([0.01] * 4, [0.012] * 4, steps=2)
    return {"blocks": [block.model_copy(update={"processor_seconds": seconds}) for block in made]}


def counting(process: int, baseline: float = 0.012, **changes: Any) -> RunEvidence:
    """Return a process that counted the launches of its timed blocks and was not profiled."""
    made = blocks([0.01] * 4, [baseline] * 4, steps=2)
    timing = {
        "blocks": [
            block.model_copy(update={"graph_launches": block.steps if block.arm == "graphed" else 0}) for block in made
        ],
        "observed_steps": 0,
        "observed_graph_launches": {},
        "counter_sees_planted": True,
        **changes,
    }
    capture = {"device_work": None, "every_step": None, "observed_steps": 0, "observed_graph_launches": None}
    return timed_run(process, timing=timing, ours=graphed(LOSSES, capture=cuda_graph(**capture)))


def profiling(**changes: Any) -> RunEvidence:
    """Return process 0, profiled in an untimed block of each arm."""
    made = {"blocks": blocks([0.01] * 4, [0.012] * 4, steps=2), "profiler_sees_planted": True, **changes}
    return timed_run(0, timing=made, ours=graphed(LOSSES))


def counted(last: RunEvidence | None = None, first: RunEvidence | None = None, **claim: Any) -> Verdict:
    """Return the verdict on one profiled process and seven counting ones; first, last: replacements."""
    return timed([first or profiling(), *(counting(process) for process in range(1, 7)), last or counting(7)], claim)


def launched(arm: str, launches: int | None) -> RunEvidence:
    """Return the last process, with this number of launches in each timed block of an arm."""
    timing = counting(7).timing
    assert timing is not None
    changed = [
        block.model_copy(update={"graph_launches": launches}) if block.arm == arm else block for block in timing.blocks
    ]
    return counting(7, blocks=changed)


def one_launch_elsewhere() -> RunEvidence:
    """Return a process in which one launch is missing from a timed block, and another block has one too many."""
    timing = counting(7).timing
    assert timing is not None
    first, *others = timing.blocks
    last = others.pop()
    return counting(
        7,
        blocks=[
            first.model_copy(update={"graph_launches": 1}), *others, last.model_copy(update={"graph_launches": 3}),
        ],
    )  # fmt: skip


def other_graphs(node: GraphNodes | None = None) -> RunEvidence:
    """Return an unprofiled process that launches another graph equally often."""
    run = counting(7)
    nodes = [node or graph(label="decoy", by_type={"kernel": 1}, kernels={"add": 1})]
    run.arms["graphed"][0] = graphed(LOSSES, capture=cuda_graph(nodes=nodes, device_work=None, every_step=None))
    return run


def sleeping_baseline() -> RunEvidence:
    """Return an unprofiled process whose baseline used no processor for half of its time."""
    timing = counting(7).timing
    assert timing is not None
    changed = [block.model_copy(update={"processor_seconds": block.seconds / 2}) for block in timing.blocks]
    return counting(7, blocks=changed)


def slow_supervisor(seconds: float = 100.0) -> Telemetry:
    """Return telemetry in which the timed phase took so long by the supervisor's clock."""
    return watched_all_along([]).model_copy(update={"timed_seconds": seconds})


LAUNCHED: dict[str, list[Case]] = {
    "capture": [
        Case("another kernel launched", "launched_otherwise", lambda: captured(device_work=other_kernels())),
        Case("two pieces, each once a step", "held", lambda: in_pieces(3, 3)),
        Case("one piece twice and the other never", "launches_differ", lambda: in_pieces(6, 0)),
        Case("one piece twice in one step", "launches_differ", lambda: in_pieces(4, 2)),
        Case("two pieces of two shapes", "held", lambda: in_pieces(2, 2, 1, 1, shapes=2)),
        Case("a piece of another shape's", "launches_differ", lambda: in_pieces(3, 1, 2, 0, shapes=2)),
        Case(
            "a node more launched",
            "launched_otherwise",
            lambda: captured(device_work=other_launches(by_type={"kernel": 13, "memset": 1})),
        ),
        Case(
            "a fill by a kernel of the driver's",
            "held",
            lambda: captured(
                device_work=other_launches(by_type={"kernel": 13}, kernels={"gemm": 8, "clip": 4, "memset32": 1})
            ),
        ),
        Case(
            "a fill too many by a kernel of the driver's",
            "launched_otherwise",
            lambda: captured(
                device_work=other_launches(by_type={"kernel": 14}, kernels={"gemm": 8, "clip": 4, "memset32": 2})
            ),
        ),
        Case(
            "an empty graph", "launched_otherwise", lambda: captured(device_work=other_launches(by_type={}, kernels={}))
        ),
        Case("a launch unseen", "launches_differ", lambda: captured(device_work=other_launches(launches=2))),
        Case("no launch in the last steps", "launches_differ", lambda: captured(device_work=work(launched=[]))),
        Case("no replay profiled", "launches_differ", lambda: captured(device_work=work(steps=0, launched=[]))),
        Case("replays unwatched", "replays_unwatched", lambda: captured(device_work=None)),
        Case(
            "a blind profiler",
            "profiler_blind",
            lambda: captured(device_work=work(launched=[]), observed_graph_launches=0, profiler_sees_planted=False),
        ),
        Case("steps unwatched", "replays_unwatched", lambda: captured(every_step=None)),
        Case("one step watched", "steps_unwatched", lambda: captured(every_step=steps(4, 5, 1))),
        Case("a step unwatched", "steps_unwatched", lambda: captured(every_step=steps(4, 5, STEPS - 2))),
        Case("replays that alone train", "held", lambda: captured(ghost=ghost())),
        Case("an eager update", "held", lambda: captured(ghost=ghost(stays=False, reads=True, moves_alone=False))),
        Case("an output without replays", "output_not_from_replay", lambda: captured(ghost=outside("loss"))),
        Case("a traced one", "output_not_from_replay", lambda: retraced(ghost=outside("parameters 0.bias"))),
        Case(
            "a loss outside, where more than the default is allowed there",
            "held",
            lambda: captured({"outside_share_at_most": 0.5}, ghost=outside("loss")),
        ),
        Case(
            "a parameter outside there",
            "output_not_from_replay",
            lambda: captured({"outside_share_at_most": 0.5}, ghost=outside("loss", "parameters 0.bias")),
        ),
        Case("one batch for all", "output_not_from_replay", lambda: captured(ghost=ghost(stays=False, reads=False))),
        Case(
            "a training that stands still",
            "replay_unproven",
            lambda: captured(None, {"losses": [1.0, *[0.0] * (STEPS - 1)]}, ghost=ghost(stays=False, reads=False)),
        ),
        Case("one batch, other gradients", "held", lambda: captured(ghost=on_one_batch())),
        Case("one batch, trained alike", "replay_unproven", lambda: captured(ghost=on_one_batch(alike=4))),
        Case("one batch, replays train", "held", lambda: captured(ghost=on_one_batch(alike=4, moves_alone=True))),
        Case("outputs of hidden state", "replay_unproven", lambda: captured(ghost=ghost(stays=False, unsure=2))),
        Case("copied by the replay", "replay_unproven", lambda: captured(ghost=ghost(moves_alone=False))),
        Case("a control that never moves", "held", lambda: captured(ghost=ghost(moves=False, moves_alone=False))),
        Case("alone alike on another batch", "replay_unproven", lambda: captured(ghost=ghost(alone_reads=False))),
        Case("over after its last step", "held", lambda: captured(ghost=over(moves_alone=True))),
        Case("over, and idle", "replay_unproven", lambda: captured(ghost=over(moves_alone=False))),
        Case("one busy step watched", "work_outside_graphs", lambda: captured(every_step=steps(4, 101, 1))),
        Case("an eager training next to it", "work_outside_graphs", lambda: captured(device_work=eager(0.03))),
        Case("at the bound", "held", lambda: captured({"outside_share_at_most": 0.5}, device_work=eager(0.03))),
        Case("a little above", "work_outside_graphs", lambda: captured(device_work=eager(0.0016))),
        Case("a little below", "held", lambda: captured(device_work=eager(0.0015))),
        Case("a time that is NaN", "work_outside_graphs", lambda: captured(device_work=eager(math.nan))),
        Case("endless time", "work_outside_graphs", lambda: captured(device_work=work(launched_seconds=math.inf))),
        Case("one busy step", "work_outside_graphs", lambda: captured(every_step=steps(4, 101))),
        Case("a step at the bound", "held", lambda: captured(every_step=steps(4, 100))),
        Case(
            "a step above its own bound",
            "work_outside_graphs",
            lambda: captured({"outside_operations_at_most": 4}),
        ),
        Case("as much after the step as may be", "held", lambda: captured(every_step=steps(4, 4, most_after=96))),
        Case("more after the step", "work_after_step", lambda: captured(every_step=steps(4, 5, most_after=96))),
        Case("kernels after the step", "work_after_step", lambda: captured(device_work=averaging())),
        Case(
            "declared kernels after the step",
            "held",
            lambda: captured({"outside_share_at_most": 0.5}, device_work=averaging()),
        ),
        Case("as much after a traced step as it has", "held", lambda: retraced(every_step=afterwards(41))),
        Case("as much, of uncounted replays", "held", lambda: retraced(every_step=steps(42, 42, most_after=41))),
        Case("more after a traced step", "work_after_step", lambda: retraced(every_step=afterwards(42))),
        Case(
            "declared operations after a traced step",
            "held",
            lambda: retraced({"outside_operations_at_most": 44}, every_step=afterwards(42), ghost=ghost()),
        ),
        Case(
            "declared, where the replays alone do not train",
            "work_after_step",
            lambda: retraced({"outside_operations_at_most": 44}, every_step=afterwards(42), ghost=outside_update()),
        ),
        Case(
            "more after a traced step than is declared",
            "work_after_step",
            lambda: retraced({"outside_operations_at_most": 43}, every_step=afterwards(42), ghost=ghost()),
        ),
        Case("a traced step twice", "work_outside_graphs", lambda: retraced(every_step=steps(42, 84))),
        Case("a traced step left out", "work_outside_graphs", lambda: retraced(every_step=steps(21, 42))),
        Case("traced steps unwatched", "replays_unwatched", lambda: retraced(every_step=None)),
        Case("no traced step watched", "replays_unwatched", lambda: retraced(every_step=steps(0, 0, 0))),
        Case("a traced step unwatched", "steps_unwatched", lambda: retraced(every_step=steps(42, 42, STEPS - 2))),
    ],
    "trajectory_match": [
        Case("an eager training next to it", "candidate_not_captured", lambda: trajectory(device_work=eager(0.03))),
        Case(
            "kernels after the step",
            "work_after_step",
            lambda: trajectory(device_work=averaging()),
        ),
        Case("as much outside as the contract allows", "held", lambda: in_a_contract(0.4, {})),
        Case(
            "more outside than the strictest of its claims allows",
            "candidate_not_captured",
            lambda: in_a_contract(0.39, {}),
        ),
        Case(
            "another kernel launched",
            "candidate_not_captured",
            lambda: trajectory(device_work=other_kernels()),
        ),
        Case("replays unwatched", "replays_unwatched", lambda: trajectory(device_work=None)),
        Case(
            "a blind profiler",
            "profiler_blind",
            lambda: trajectory(device_work=work(launched=[]), profiler_sees_planted=False),
        ),
        Case("one step watched", "steps_unwatched", lambda: trajectory(every_step=watch_of(1))),
        Case(
            "one step of all replayed",
            "candidate_not_captured",
            lambda: trajectory(replays=1, uncaptured_steps=STEPS - 1),
        ),
        Case("a step outside the capture", "candidate_not_captured", lambda: trajectory(uncaptured_steps=1)),
        Case("steps that nothing replayed", "candidate_not_captured", lambda: trajectory(replays=STEPS - 2)),
        Case("a first step that is recorded alone", "held", lambda: trajectory(replays=STEPS - 1)),
        Case("a schedule padded to one shape", "held", lambda: in_shapes(STEPS - 3, 1)),
        Case("a step more of it unwatched", "steps_unwatched", lambda: in_shapes(STEPS - 4, 1)),
        Case("traced throughout", "held", traced_trajectory),
        Case(
            "traced and unobserved",
            "launches_unobserved",
            lambda: traced_trajectory(observed_steps=0, observed_replayed_operations=None),
        ),
        Case("traced, none seen", "launches_unobserved", lambda: traced_trajectory(observed_replayed_operations=None)),
        Case("no traced step watched", "replays_unwatched", lambda: traced_trajectory(every_step=steps(0, 0, 0))),
        Case(
            "a traced step unwatched",
            "steps_unwatched",
            lambda: traced_trajectory(every_step=steps(42, 42, STEPS - 2)),
        ),
    ],
    "host_syncs": [
        Case("a sync in every tenth step", "sync_count", lambda: every_tenth(judged_steps(1))),
        Case(
            "a sync in a replay, and a training next to it",
            "candidate_not_captured",
            lambda: every_tenth(judged_steps(1), execution={"capture": cuda_graph(device_work=eager(0.03))}),
        ),
        Case(
            "a required sync that no judged step has",
            "sync_count",
            lambda: watched(
                replays({"profiler": 2, "sync_debug_mode": 2}, every_step=judged_steps(first_step=None)),
                claim={"candidate": {"arm": "graphed", "exactly": 1}},
            ),
        ),
        Case("one a step", "held", lambda: at_most_one(STEPS - 1, most=1, busiest_step=1)),
        Case("two in one of all", "sync_count", lambda: at_most_one(2, most=2, busiest_step=4)),
        Case("none knows in which steps", "steps_unwatched", lambda: at_most_one(STEPS - 1)),
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
        Case("an eager training next to it", "work_outside_graphs", lambda: timed_with(device_work=eager(0.03))),
        Case(
            "as much of it as the contract allows",
            "held",
            lambda: timed_with(CAPTURE | {"id": "C", "outside_share_at_most": 0.5}, device_work=eager(0.03)),
        ),
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
        Case("a supervisor that waited a little", "held", lambda: timed(telemetry=slow_supervisor(2.0))),
        Case("one process profiled, seven counted", "held", counted),
        Case("the same, enqueued twelve times as fast", "held", lambda: counted(**ENQUEUE)),
        Case("a launch missing in the timed blocks", "launches_differ", lambda: counted(launched("graphed", 1))),
        Case("a launch in the wrong block", "launches_differ", lambda: counted(one_launch_elsewhere())),
        Case("no launch in the timed blocks", "candidate_not_captured", lambda: counted(launched("graphed", 0))),
        Case("timed blocks uncounted", "launches_unobserved", lambda: counted(launched("graphed", None))),
        Case("a baseline's blocks uncounted", "launches_unobserved", lambda: counted(launched("ungraphed", None))),
        Case("a baseline that launches", "vacuous_baseline_captured", lambda: counted(launched("ungraphed", 1))),
        Case(
            "neither counted nor profiled",
            "launches_unobserved",
            lambda: counted(counting(7, counter_sees_planted=None)),
        ),
        Case("a blind counter", "counter_blind", lambda: counted(counting(7, counter_sees_planted=False))),
        Case(
            "a counter that could not count",
            "counter_blind",
            lambda: counted(counting(7, counter_sees_planted=False, counter_failure="no libcupti is loaded")),
        ),
        Case("no process profiled", "device_work_unobserved", lambda: counted(first=counting(0))),
        Case("a blind profiler", "profiler_blind", lambda: counted(first=profiling(profiler_sees_planted=False))),
        Case(
            "a profiler shown no sync", "profiler_blind", lambda: counted(first=profiling(profiler_sees_planted=None))
        ),
        Case(
            "a blind profiler in each process", "profiler_blind", lambda: timed(timing={"profiler_sees_planted": False})
        ),
        Case("other graphs where none was profiled", "graphs_differ", lambda: counted(other_graphs())),
        Case("other labels where none was profiled", "held", lambda: counted(other_graphs(graph(label="decoy")))),
        Case(
            "more device time than time, where none was profiled",
            "clock_contradicted",
            lambda: counted(counting(7, 0.01), profiling(observed_device_seconds={"ungraphed": 0.013})),
        ),
        Case("asleep where none was profiled", "baseline_idle", lambda: counted(sleeping_baseline())),
        Case(
            "waiting for a device that was busy where it was profiled",
            "held",
            lambda: counted(sleeping_baseline(), profiling(observed_device_seconds={"ungraphed": 0.0115})),
        ),
    ],
}
