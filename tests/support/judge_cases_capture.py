"""Cases of capture, host_syncs and memory_steady: evidence that passes, with one thing changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from evidence_builders import (
    LAYERS,
    STEPS,
    arm,
    counted,
    cuda_graph,
    graph,
    graphed,
    memory,
    paired,
    syncs,
    traced,
    unrecorded,
    verdict_of,
)
from judge_cases import Case

from harness.evidence.arm_records import HostSyncEvidence
from harness.judging.verdict import Verdict

CAPTURE: dict[str, Any] = {
    "kind": "capture",
    "mechanism": "cuda_graph",
    "candidate": "graphed",
    "nodes_at_least": 13,
    "nodes_at_most": 13,
    "kernels_per_layer_at_least": 6,
    "clipped_tensors_per_layer": 6,
}
TRACED: dict[str, Any] = {"kind": "capture", "mechanism": "traced", "candidate": "graphed"}


# 12 kernels over two layers, of which a layer can hold four: two of the five, two of the four, none of the single ones
UNEVEN = {"gemm": 5, "norm": 4, "head": 1, "loss": 1, "clip": 1}


def captured(claim: dict[str, Any] | None = None, execution: dict[str, Any] | None = None, **capture: Any) -> Verdict:
    """Return the verdict on a captured CUDA graph with changes."""
    replayed = graphed(**{"capture": cuda_graph(**capture), **(execution or {})})
    return verdict_of(CAPTURE | (claim or {}), paired(replayed))


def silent(attempts: int | None, failed: int = 0) -> Verdict:
    """Return the verdict on an arm with no requested capture and no error; the harness saw `attempts` and `failed`."""
    asked = graphed(capture=cuda_graph(captured=False, captures=0, replays=0, nodes=[], device_work=None))
    return verdict_of(CAPTURE, paired(counted(asked, attempts, failed)))


def nodes(**types: int) -> dict[str, Any]:
    """Return a graph with the usual kernels and these other nodes."""
    return {"nodes": [graph(by_type={"kernel": 12, **types})]}


def retraced(claim: dict[str, Any] | None = None, **capture: Any) -> Verdict:
    return verdict_of(TRACED | (claim or {}), paired(graphed(capture=traced(**capture))))


TWO_PIECES: dict[str, Any] = {
    "nodes": [graph(label="forward", clipped_tensors=None), graph(label="backward")],
    "observed_graph_launches": 6,
}
THREE_SHAPES: dict[str, Any] = {"captures": 3, "nodes": [graph(label=shape) for shape in ("a", "b", "c")]}


def last_shape(**changes: Any) -> dict[str, Any]:
    """Return three captures, the last one changed."""
    return THREE_SHAPES | {"nodes": [graph(label="a"), graph(label="b"), graph(label="c", **changes)]}


def shaped(shapes: int | None, **capture: Any) -> Verdict:
    """Return the verdict on three captures for `shapes` shapes of batches, with one capture allowed for each."""
    asked = graphed(capture=cuda_graph(**(THREE_SHAPES | capture)))
    assert asked.end is not None
    end = asked.end.model_copy(update={"input_shapes": shapes})
    return verdict_of(CAPTURE | {"per_shape": True}, paired(dataclasses.replace(asked, end=end)))


def observed(replays: int, claim: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """Return the verdict if the harness observed so many replays of the ten that the arm reports."""
    execution = graphed(**changes)
    assert execution.end is not None
    end = execution.end.model_copy(update={"replays": replays})
    return verdict_of(claim or CAPTURE, paired(dataclasses.replace(execution, end=end)))


CAPTURE_CASES = [
    Case("three shapes", "held", lambda: captured({"captures": 3}, **THREE_SHAPES)),
    Case(
        "three traced shapes",
        "held",
        lambda: retraced({"captures": 3}, captures=3, recorded_operations=120, observed_replayed_operations=120),
    ),
    Case("one kernel for each layer", "held", lambda: captured({"kernels_per_layer_at_least": 1})),
    Case(
        "few nodes at one shape", "node_count", lambda: captured({"captures": 3}, **last_shape(by_type={"kernel": 12}))
    ),
    Case(
        "few kernels at one shape",
        "kernels_per_layer",
        lambda: captured({"captures": 3}, **last_shape(kernels={"gemm": 11})),
    ),
    Case(
        "half a clip at one shape",
        "clipped_tensors",
        lambda: captured({"captures": 3}, **last_shape(clipped_tensors=6)),
    ),
    Case("a CUDA graph", "held", captured),
    Case("a traced step", "held", retraced),
    Case("forward and backward graphs", "held", lambda: captured({"nodes_at_most": None}, **TWO_PIECES)),
    Case(
        "CUDA's own names of nodes",
        "held",
        lambda: captured({"nodes_at_most": None}, **nodes(cudaGraphNodeTypeMemset=2)),
    ),
    Case("failed", "not_captured", lambda: captured(captured=False, failure="a sync")),
    Case("failed at one shape", "not_captured", lambda: captured(failure="a sync")),
    Case("never began", "not_captured", lambda: captured(captures=0)),
    Case("asked for and not begun", "capture_not_begun", lambda: silent(0)),
    Case("given up without a word", "not_captured", lambda: silent(2, 2)),
    Case("silent, by an older version", "not_captured", lambda: silent(None)),
    Case("no node", "empty_capture", lambda: captured(nodes=[graph(by_type={})])),
    Case(
        "one empty graph of two",
        "empty_capture",
        lambda: captured(nodes=[graph(), graph(label="backward", by_type={"kernel": 0})]),
    ),
    Case("no operation", "empty_capture", lambda: retraced(recorded_operations=0, observed_replayed_operations=0)),
    Case("host node", "forbidden_node", lambda: captured(**nodes(host=1))),
    Case("allocation", "forbidden_node", lambda: captured(**nodes(mem_alloc=1))),
    Case("allocation by CUDA's own name", "forbidden_node", lambda: captured(**nodes(cudaGraphNodeTypeMemAlloc=1))),
    Case("copy to the host", "forbidden_node", lambda: captured(nodes=[graph(device_to_host_copies=1)])),
    Case("unknown node", "unknown_node_type", lambda: captured(**nodes(teleport=1))),
    Case("sync under fake tensors", "sync_in_capture", lambda: retraced(fake_pass_clean=False)),
    Case(
        "an operator unseen",
        "operators_unseen",
        lambda: retraced(fake_pass_clean=None, unseen_operators=["mine::scaled"]),
    ),
    Case("no fake pass", "evidence_missing", lambda: retraced(fake_pass_clean=None)),
    Case("a second capture", "wrong_capture_count", lambda: captured(captures=2, nodes=[graph(), graph()])),
    Case(
        "a graph whose nodes were not counted",
        "evidence_inconsistent",
        lambda: captured({"captures": 2}, captures=2, nodes=[graph()]),
    ),
    Case(
        "a piece of a capture whose nodes were not counted",
        "evidence_inconsistent",
        lambda: captured({"captures": 2}, captures=2, nodes=[graph(), graph(), graph()]),
    ),
    Case("a capture for each shape", "held", lambda: shaped(3)),
    Case("fewer captures than shapes", "held", lambda: shaped(4)),
    Case("more captures than shapes", "wrong_capture_count", lambda: shaped(2)),
    Case(
        "a capture in every step, all of other shapes",
        "wrong_capture_count",
        lambda: shaped(STEPS, captures=STEPS, nodes=[graph()] * STEPS),
    ),
    Case("shapes unrecorded", "evidence_missing", lambda: shaped(None)),
    Case("a step outside", "uncaptured_steps", lambda: captured(uncaptured_steps=1, replays=STEPS - 1)),
    Case("a lost step", "lost_step", lambda: captured(replays=STEPS - 1)),
    Case("one replay observed", "launches_unobserved", lambda: observed(1)),
    Case("no replay of a CUDA graph observed", "held", lambda: observed(0)),
    Case(
        "no replay of a traced capture observed", "launches_unobserved", lambda: observed(0, TRACED, capture=traced())
    ),
    Case("a step twice", "extra_step", lambda: captured(replays=STEPS + 1)),
    Case("launches unseen", "launches_unobserved", lambda: captured(observed_graph_launches=None)),
    Case("no step watched", "launches_unobserved", lambda: captured(observed_steps=0, observed_graph_launches=0)),
    Case(
        "launches unseen, and a buffer moved",
        "moved_buffer",
        lambda: captured(observed_graph_launches=None, moved_buffers=["tokens"]),
    ),
    Case("a launch missing", "launches_differ", lambda: captured(observed_graph_launches=2)),
    Case("a launch too many", "launches_differ", lambda: captured(observed_graph_launches=4)),
    Case("replayed too little", "launches_differ", lambda: retraced(observed_replayed_operations=119)),
    Case("replayed twice", "launches_differ", lambda: retraced(observed_replayed_operations=240)),
    Case(
        "replays of the smaller of two captures",
        "launches_unobserved",
        lambda: retraced({"captures": 2}, captures=2, recorded_operations=80, observed_replayed_operations=119),
    ),
    Case(
        "no replay seen of two captures",
        "launches_differ",
        lambda: retraced({"captures": 2}, captures=2, recorded_operations=80, observed_replayed_operations=0),
    ),
    Case("moved buffer", "moved_buffer", lambda: captured(moved_buffers=["tokens"])),
    Case("no buffer", "vacuous_no_buffers", lambda: captured(static_buffers=0)),
    Case("too few nodes", "node_count", lambda: captured({"nodes_at_least": 14, "nodes_at_most": None})),
    Case("too many nodes", "node_count", lambda: captured({"nodes_at_least": 1, "nodes_at_most": 12})),
    Case(
        "kernels of every layer", "held", lambda: captured({"kernels_in_every_layer": 4}, nodes=[graph(kernels=UNEVEN)])
    ),
    Case(
        "too few of every layer",
        "kernels_per_layer",
        lambda: captured({"kernels_in_every_layer": 5}, nodes=[graph(kernels=UNEVEN)]),
    ),
    Case("too few kernels", "kernels_per_layer", lambda: captured({"kernels_per_layer_at_least": 7})),
    Case("clipped twice", "clipped_tensors", lambda: captured(nodes=[graph(clipped_tensors=24)])),
    Case("clip unread", "evidence_missing", lambda: captured(nodes=[graph(clipped_tensors=None)])),
    Case("layers unknown", "evidence_missing", lambda: captured(execution={"facts": {}})),
    Case("skipped update", "skipped_steps", lambda: captured(execution={"skipped": 1})),
    Case("kernels of a traced step", "mechanism_missing", lambda: retraced({"kernels_per_layer_at_least": 1})),
    Case("traced", "mechanism_missing", lambda: verdict_of(CAPTURE, paired(graphed(capture=traced())))),
    Case(
        "no step",
        "vacuous_nothing_compared",
        lambda: verdict_of(CAPTURE, paired(graphed([], capture=cuda_graph(replays=0)))),
    ),
    Case("no record", "evidence_missing", lambda: verdict_of(CAPTURE, paired(unrecorded(graphed())))),
    Case("skipped as often as allowed", "held", lambda: captured({"skipped_steps_at_most": 1}, {"skipped": 1})),
]

SYNCS: dict[str, Any] = {
    "kind": "host_syncs",
    "candidate": {"arm": "graphed", "at_most": 0},
    "control": {"arm": "synchronizing", "exactly": 6, "per_layer": True},
}
CONTROL = {"dispatch_mode": 12 * LAYERS, "profiler": 12 * LAYERS}


# a capture claim that lets the arm leave out one update
MAY_SKIP = [{"id": "CAPTURED", "kind": "capture", "candidate": "graphed", "skipped_steps_at_most": 1}]


def watched(
    candidate: HostSyncEvidence | None = None, control: HostSyncEvidence | None = None, **changes: Any
) -> Verdict:
    """Return the verdict on no sync in two replays, and six for each layer and step in the control, with changes."""
    replay = syncs("graphed", {"profiler": 0, "sync_debug_mode": 0}, replayed=True)
    waiting = {"syncs": control or syncs("synchronizing", CONTROL), **changes.get("of_control", {})}
    reported = [arm("ungraphed", syncs=changes["reported"])] if "reported" in changes else []
    run = paired(
        graphed(**{"syncs": candidate or replay, **changes.get("execution", {})}),
        arm("synchronizing", **waiting),
        *reported,
    )
    return verdict_of(SYNCS | changes.get("claim", {}), run, beside=changes.get("beside", ()))


def replays(counts: dict[str, int], **changes: Any) -> HostSyncEvidence:
    return syncs("graphed", counts, **{"replayed": True, **changes})


def control(**counts: int) -> HostSyncEvidence:
    return syncs("synchronizing", counts)


def blind(evidence: HostSyncEvidence, detector: str) -> HostSyncEvidence:
    """Return the evidence with one detector that did not see the planted sync."""
    readings = [
        reading.model_copy(update={"sees_planted": reading.detector != detector}) for reading in evidence.readings
    ]
    return evidence.model_copy(update={"readings": readings})


def placed(evidence: HostSyncEvidence) -> HostSyncEvidence:
    """Return the evidence in which the second run, for the places, saw one sync fewer than the first counted."""
    first, *others = evidence.readings
    places = [first.places[0].model_copy(update={"count": first.count - 1})]
    return evidence.model_copy(update={"readings": [first.model_copy(update={"places": places}), *others]})


AT_MOST_ONE: dict[str, Any] = {"claim": {"candidate": {"arm": "graphed", "at_most": 1}}}
SYNC_CASES = [
    Case("none in a replay", "held", watched),
    Case(
        "within an upper bound", "held", lambda: watched(replays({"profiler": 2, "sync_debug_mode": 2}), **AT_MOST_ONE)
    ),
    Case("one sync in two steps", "sync_count", lambda: watched(replays({"profiler": 1, "sync_debug_mode": 0}))),
    Case(
        "beyond an upper bound",
        "sync_count",
        lambda: watched(replays({"profiler": 3, "sync_debug_mode": 2}), **AT_MOST_ONE),
    ),
    Case(
        "fewer than exactly",
        "sync_count",
        lambda: watched(
            replays({"profiler": 0, "sync_debug_mode": 0}), claim={"candidate": {"arm": "graphed", "exactly": 1}}
        ),
    ),
    Case(
        "disagreement within the bound",
        "detectors_disagree",
        lambda: watched(replays({"profiler": 2, "sync_debug_mode": 0}), **AT_MOST_ONE),
    ),
    Case("one detector", "one_detector", lambda: watched(replays({"profiler": 0}))),
    Case(
        "a control that does nothing but wait",
        "held",
        lambda: watched(of_control={"losses": [2.0] * STEPS, "end": "start"}),
    ),
    Case("as many updates left out as may be", "held", lambda: watched(execution={"skipped": 1}, beside=MAY_SKIP)),
    Case(
        "more updates left out than may be",
        "vacuous_skipped_step",
        lambda: watched(execution={"skipped": 2}, beside=MAY_SKIP),
    ),
    Case("detectors blind to a replay", "one_detector", lambda: watched(replays({"dispatch_mode": 0, "fake_pass": 0}))),
    Case(
        "one detector next to a pass on fake tensors that failed",
        "one_detector",
        lambda: watched(
            replays({"profiler": 0}, fake_tensors_error="train.py:7 in step `mine(x)`: RuntimeError: no fake impl")
        ),
    ),
    Case(
        "a blind detector next to one that sees",
        "one_detector",
        lambda: watched(replays({"dispatch_mode": 0, "profiler": 0})),
    ),
    Case(
        "planted sync unseen",
        "vacuous_detector_blind",
        lambda: watched(blind(replays({"profiler": 0, "sync_debug_mode": 0}), "sync_debug_mode")),
    ),
    Case(
        "planted sync unseen in the control",
        "vacuous_detector_blind",
        lambda: watched(control=blind(control(**CONTROL), "dispatch_mode")),
    ),
    Case(
        "planted sync unseen by the profiler",
        "profiler_blind",
        lambda: watched(blind(replays({"profiler": 0, "sync_debug_mode": 0}), "profiler")),
    ),
    Case(
        "planted sync unseen by the control's profiler",
        "profiler_blind",
        lambda: watched(control=blind(control(dispatch_mode=0, profiler=0), "profiler")),
    ),
    Case(
        "a control's profiler that is blind, and a candidate that waits",
        "sync_count",
        lambda: watched(
            replays({"profiler": 1, "sync_debug_mode": 0}), blind(control(dispatch_mode=0, profiler=0), "profiler")
        ),
    ),
    Case(
        "fewer than exactly, by a blind profiler",
        "profiler_blind",
        lambda: watched(
            blind(replays({"profiler": 0, "sync_debug_mode": 0}), "profiler"),
            claim={"candidate": {"arm": "graphed", "exactly": 1}},
        ),
    ),
    Case(
        "more than the bound, by a blind profiler",
        "sync_count",
        lambda: watched(blind(replays({"profiler": 1, "sync_debug_mode": 0}), "profiler")),
    ),
    Case(
        "two looks that disagree within the bound",
        "detectors_disagree",
        lambda: watched(placed(replays({"profiler": 2, "sync_debug_mode": 2})), **AT_MOST_ONE),
    ),
    Case(
        "two looks that disagree beyond the bound",
        "sync_count",
        lambda: watched(placed(replays({"profiler": 2, "sync_debug_mode": 2}))),
    ),
    Case(
        "control without syncs",
        "vacuous_control_no_sync",
        lambda: watched(control=control(dispatch_mode=0, profiler=0)),
    ),
    Case("control with others", "control_sync_count", lambda: watched(control=control(dispatch_mode=22, profiler=22))),
    Case("no step watched", "vacuous_steps", lambda: watched(replays({"profiler": 0, "sync_debug_mode": 0}, steps=0))),
    Case("layers unknown", "evidence_missing", lambda: watched(control=syncs("synchronizing", CONTROL, layers=0))),
    Case(
        "not replayed",
        "candidate_not_captured",
        lambda: watched(syncs("graphed", {"profiler": 0, "sync_debug_mode": 0})),
    ),
    Case("not observed", "evidence_missing", lambda: watched(execution={"syncs": None})),
]

MEMORY: dict[str, Any] = {
    "kind": "memory_steady",
    "candidate": "graphed",
    "per": "replay",
    "after": 2,
    "growth_at_most": 0.01,
}


def sampled(
    allocated: Sequence[int],
    *rest: Any,
    claim: dict[str, Any] | None = None,
    probe: str = "paired",
    steps: Sequence[int] | None = None,
    of: int | None = None,
    beside: Sequence[dict[str, Any]] = (),
    **execution: Any,
) -> Verdict:
    """Return the verdict on memory samples in bytes, one for each step.

    steps: the steps of the samples. of: the number of the workload's steps. beside: further claims of the contract.
    """
    record = memory(allocated, *rest)
    if steps is not None:
        record = record.model_copy(update={"samples": [record.samples[step] for step in steps]})
    losses = np.linspace(3.0, 2.0, len(allocated))
    run = paired(graphed(**{"losses": losses, "memory": [record], **execution}), probe=probe)
    return verdict_of(MEMORY | (claim or {}), run, beside=beside, steps=of or max(len(allocated), 1))


ONE: dict[str, Any] = {"after": 1}
MEMORY_CASES = [
    Case("steady", "held", lambda: sampled([100, 200, 200, 201, 202, 202])),
    Case(
        "steady per re-capture",
        "held",
        lambda: sampled([5, 5, 5], None, "recapture", claim={"per": "recapture", "after": 1}, probe="recapture"),
    ),
    Case("shrinking", "held", lambda: sampled([100, 200, 150, 150, 150, 150])),
    Case("freed after the warm-up", "held", lambda: sampled([100, 200, 0, 0, 0, 0], [512] * 6)),
    Case("growth", "memory_grows", lambda: sampled([100, 200, 200, 203])),
    Case("reserved growth", "memory_grows", lambda: sampled([100] * 4, [100, 100, 100, 102])),
    Case(
        "reserved growth by a byte",
        "memory_grows",
        lambda: sampled([100] * 4, [2**30] * 3 + [2**30 + 1], claim={"of": "reserved", "growth_at_most": 0.0}),
    ),
    Case(
        "equal reserved memory under growing allocations",
        "held",
        lambda: sampled([100, 200, 300, 400], [512] * 4, claim={"of": "reserved", "growth_at_most": 0.0}),
    ),
    Case("a leak below the warm-up's peak", "memory_grows", lambda: sampled([100, 900, 110, 120, 130, 140])),
    Case("a rise right after a high warm-up", "memory_grows", lambda: sampled([200, 100, *[130] * 5], claim=ONE)),
    Case(
        "a leak behind a peak right after the warm-up",
        "memory_grows",
        lambda: sampled([200, 200, 100, 110, 90, 150, 150], claim=ONE),
    ),
    Case(
        "a leak behind a peak in the first group",
        "memory_grows",
        lambda: sampled([200, 100, 100, 200, *[100] * 4, 150, 150]),
    ),
    Case("a dip between three later samples", "held", lambda: sampled([100, 100, 90, 100], claim=ONE)),
    Case("growth from nothing", "memory_grows", lambda: sampled([0, 0, 5], [9, 9, 9])),
    Case("no later sample", "vacuous_steps", lambda: sampled([100, 200])),
    Case("the grown sample missing", "evidence_missing", lambda: sampled([5] * 4 + [9] + [5], steps=[0, 1, 2, 3, 5])),
    Case("the last sample missing", "evidence_missing", lambda: sampled([5] * 5, steps=[0, 1, 2, 3])),
    Case("samples out of order", "evidence_missing", lambda: sampled([9, 5, 5, 5], steps=[1, 2, 3, 0])),
    Case("a sample twice", "evidence_missing", lambda: sampled([5] * 4, steps=[0, 1, 2, 2, 3])),
    Case("zero bytes", "vacuous_no_memory", lambda: sampled([0, 0, 0, 0])),
    Case("not sampled", "evidence_missing", lambda: sampled([1], memory=[])),
    Case("no re-capture run", "evidence_missing", lambda: sampled([5, 5, 5], claim={"per": "recapture"})),
    Case("traced", "mechanism_missing", lambda: sampled([5] * 5, capture=traced())),
    Case(
        "captured by who knows what",
        "mechanism_missing",
        lambda: sampled([5] * 5, claim={"mechanism": None}, capture=cuda_graph(mechanism=None)),
    ),
    Case("as many updates left out as may be", "held", lambda: sampled([5] * STEPS, skipped=1, beside=MAY_SKIP)),
]
