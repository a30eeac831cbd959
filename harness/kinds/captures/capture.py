"""Judge `capture` (a step was captured completely) and `capture_fallback` (a capture that fails is reported)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.evidence.arm_records import CaptureEvidence, GraphNodes
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, capture_of, end_of, executed
from harness.judging.end_state import note_watched
from harness.judging.launched import Bounds, JudgedSteps, blind, graphs_per_step, outside_share, plain_type, uncounted
from harness.judging.series import Bounds as SeriesBounds
from harness.judging.series import note_difference, of_two_arms, require_equal
from harness.judging.sheet import Sheet, require_steps, settle, some
from harness.judging.verdict import Judgement, Relation, Status
from harness.kinds.captures.model import Capture, CaptureFallback

# Types of nodes that a capture must not contain, as names of cudaGraphNodeType without the prefix. Host nodes call
# functions on the host. Allocations and frees change addresses. All other types work on the device, or order its work.
_FORBIDDEN = {"host", "memalloc", "memfree"}
# Every capture has at least one node. A bound of one node or one kernel therefore requires nothing.
TRIVIAL = 1
_KNOWN = _FORBIDDEN | {"kernel", "memcpy", "memset", "graph", "empty", "waitevent", "eventrecord", "conditional"}


def judge(part: Capture, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: something was captured, the graph is not
    empty, it contains nothing forbidden, each step was replayed once, the claim's bounds."""
    execution = executed(context.only_run("paired"), part.candidate)
    capture = capture_of(part.candidate, execution, context.mechanism(part), sheet)
    counts = _node_counts(capture)
    nodes = sum(counts)
    _note(capture, nodes, sheet)
    _require_captured(part.candidate, capture, execution)
    _require_contents(capture, nodes)
    _require_number(part, capture, execution, sheet)
    _require_census(capture)
    steps = context.judged_steps(execution)
    _require_every_step(capture, steps, sheet)
    _require_launches(capture, sheet)
    _require_counted(part, capture, steps, sheet)
    if capture.moved_buffers:
        settle(
            reasons.MOVED_BUFFER,
            f"{len(capture.moved_buffers)} of {capture.static_buffers} static buffers changed their address after the "
            f"capture: {some(capture.moved_buffers)}",
        )
    if capture.static_buffers == 0:
        settle(reasons.VACUOUS_NO_BUFFERS, "no static buffer was watched")
    _require_bounds(part, capture, counts, execution, sheet)
    comparison, group = Comparison(part, context, sheet), Group({part.candidate: execution})
    comparison.note_warm(part.candidate, steps)
    comparison.begin(group)
    comparison.end(group, part.skipped_steps_at_most)
    if capture.fake_pass_clean is None and capture.unseen_operators:
        settle(
            reasons.OPERATORS_UNSEEN,
            f"{some(capture.unseen_operators)} cannot be executed on fake tensors, so nothing shows here whether "
            "such an operator waits for the device",
        )
    return comparison.held(
        f"{capture.captures} captures of {nodes} nodes were replayed {capture.replays} times, once for each step, and "
        f"{capture.static_buffers} buffers kept their addresses"
    )


def _require_captured(arm: str, capture: CaptureEvidence, execution: ArmEvidence) -> None:
    """End the judgement with FAIL if nothing was captured. If the trainer reports no reason, the message contains what
    the harness itself observed."""
    if capture.captured and not capture.failure and capture.captures:
        return
    end = end_of(execution)
    silent = capture.requested and not capture.captured and not capture.failure
    if silent and end.capture_attempts == 0:
        settle(reasons.CAPTURE_NOT_BEGUN, f"{arm} asks for a capture, but none was begun in {end.steps_called} steps")
    if silent and end.capture_errors:
        why = f"failed, and the arm trained without a capture: {end.capture_errors[0]}"
        settle(reasons.NOT_CAPTURED, f"the capture of arm {arm} {why}")
    why = f"failed: {capture.failure}" if capture.failure else "never began"
    settle(reasons.NOT_CAPTURED, f"the capture of arm {arm} {why}")


def _require_number(part: Capture, capture: CaptureEvidence, execution: ArmEvidence, sheet: Sheet) -> None:
    """End the judgement with FAIL unless exactly the demanded number of captures was made.

    With `per_shape`, there may be up to this number of captures for each shape of batch, and there must be fewer
    captures than steps.
    """
    of_graph = any(demand > TRIVIAL for demand in _of_graph(part) if demand is not None)
    beside = of_graph or "captures" not in part.model_fields_set
    if not part.per_shape:
        if not sheet.meets("captures", capture.captures, "exactly", part.captures, "captures", beside=beside):
            settle(
                reasons.WRONG_CAPTURE_COUNT, f"{capture.captures} captures were made, but {part.captures} are required"
            )
        return
    end = end_of(execution)
    if end.input_shapes is None:
        settle(
            reasons.EVIDENCE_MISSING,
            f"the number of different shapes of the batches of {part.candidate} was not recorded",
        )
    sheet.count("shapes", end.input_shapes)
    most = part.captures * end.input_shapes
    # An earlier check has ended the judgement if there is no capture, so "at most 1" means "exactly 1" here.
    relation: Relation = "exactly" if most == 1 else "at most"
    if not sheet.meets("captures", capture.captures, relation, most, "captures", beside=beside):
        settle(
            reasons.WRONG_CAPTURE_COUNT,
            f"{capture.captures} captures were made for {end.input_shapes} shapes of batches, but at most "
            f"{part.captures} for each shape are allowed",
        )
    fewer = end.steps_called - 1
    if fewer > 0 and not sheet.meets("captures", capture.captures, "at most", fewer, "captures", beside=True):
        settle(
            reasons.WRONG_CAPTURE_COUNT,
            f"{capture.captures} captures were made in {end.steps_called} steps, so no capture was replayed in a "
            "second step",
        )


def _of_graph(part: Capture) -> Iterator[int | None]:
    """Yield the claim's bounds on nodes, kernels and clipped tensors of the graph; None for a bound that is not set."""
    yield from (part.nodes_at_least, part.nodes_at_most, part.clipped_tensors_per_layer)
    yield from (part.kernels_per_layer_at_least, part.kernels_in_every_layer)


def _captures(capture: CaptureEvidence) -> list[list[GraphNodes]]:
    """Return the graphs of each capture, in order. The graphs of a capture are consecutive in the record."""
    pieces = graphs_per_step(capture)
    return [capture.nodes[first : first + pieces] for first in range(0, len(capture.nodes), pieces)]


def _node_counts(capture: CaptureEvidence) -> list[int]:
    """Return each capture's number of nodes or, for traced captures (without a GPU), the mean number of operations."""
    if capture.mechanism == "traced":
        return [capture.recorded_operations // max(capture.captures, 1)]
    return [sum(sum(graph.by_type.values()) for graph in graphs) for graphs in _captures(capture)]


def _note(capture: CaptureEvidence, nodes: int, sheet: Sheet) -> None:
    sheet.count("nodes", nodes)
    sheet.count("captures", capture.captures)
    sheet.count("observed_steps", capture.observed_steps)
    sheet.count("buffers", capture.static_buffers)
    sheet.figure("replays", capture.replays, "replays")
    sheet.figure("warmup_steps", capture.warmup_steps, "steps")
    sheet.figure("uncaptured_steps", capture.uncaptured_steps, "steps")
    for graph in capture.nodes:
        for node_type, number in sorted(graph.by_type.items()):
            sheet.figure(f"nodes.{graph.label}.{node_type}", number, "nodes")


def _require_contents(capture: CaptureEvidence, nodes: int) -> None:
    empty = [graph.label for graph in capture.nodes if sum(graph.by_type.values()) == 0]
    if nodes == 0 or empty:
        settle(reasons.EMPTY_CAPTURE, f"the capture or a graph in it is empty: {some(empty) or 'nothing was recorded'}")
    if capture.mechanism == "traced":
        if capture.fake_pass_clean is None and not capture.unseen_operators:
            settle(
                reasons.EVIDENCE_MISSING,
                "the step was not run under fake tensors, so waits for the device (host syncs) went unseen",
            )
        if capture.fake_pass_clean is False:
            settle(reasons.SYNC_IN_CAPTURE, "the step waited for the device when it was run under fake tensors")
    for graph in capture.nodes:
        _require_device_work(graph)


def _require_census(capture: CaptureEvidence) -> None:
    """End the judgement with ERROR if the number of recorded graphs is not a multiple of the number of captures. All
    captures have the same number of graphs, so in this case the nodes of at least one graph were not counted."""
    if len(capture.nodes) % capture.captures:  # a step that was recorded without a GPU has no graphs
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"the nodes of {len(capture.nodes)} graphs were counted, but {capture.captures} captures were made",
        )


def _require_device_work(graph: GraphNodes) -> None:
    types = {plain_type(node_type): number for node_type, number in graph.by_type.items() if number}
    forbidden = [f"{number} {node_type}" for node_type, number in sorted(types.items()) if node_type in _FORBIDDEN]
    if graph.device_to_host_copies:
        forbidden.append(f"{graph.device_to_host_copies} device-to-host copies")
    if forbidden:
        settle(reasons.FORBIDDEN_NODE, f"graph {graph.label} holds forbidden nodes: {', '.join(forbidden)}")
    unknown = sorted(set(types) - _KNOWN)
    if unknown:
        settle(reasons.UNKNOWN_NODE_TYPE, f"graph {graph.label} holds nodes of unknown type: {some(unknown)}")


def _require_every_step(capture: CaptureEvidence, judged: JudgedSteps, sheet: Sheet) -> None:
    """End the judgement with FAIL if a step was not replayed exactly once. The step in which a capture is made counts,
    too, because the capture itself executes nothing."""
    steps = judged.called
    sheet.count("steps", steps)
    if judged.uncaptured:
        settle(reasons.UNCAPTURED_STEPS, f"{judged.uncaptured} of {steps} steps ran outside the capture")
    if capture.replays < steps:
        settle(reasons.LOST_STEP, f"{steps} steps were requested, but {capture.replays} were replayed")
    if capture.replays > steps:
        settle(reasons.EXTRA_STEP, f"{steps} steps were requested, but {capture.replays} were replayed")


def _require_launches(capture: CaptureEvidence, sheet: Sheet) -> None:
    """End the judgement with FAIL unless each watched step launched, on average, as many graphs as one capture has. The
    profiler counts the launches. For a step recorded without a GPU, replayed operations are counted instead."""
    traced = capture.mechanism == "traced"
    seen = capture.observed_replayed_operations if traced else capture.observed_graph_launches
    what = "replayed operations" if traced else "graph launches"
    sheet.figure("observed_launches", seen, what)
    if seen is None or capture.observed_steps == 0:
        sheet.leave_open(reasons.LAUNCHES_UNOBSERVED, f"the harness observed no {what}")
        return
    unseen = blind(capture.arm, capture)
    if unseen is not None:
        sheet.leave_open(unseen.reason, unseen.message)
        return
    per_step = _node_counts(capture)[0] if traced else graphs_per_step(capture)
    needed = per_step * capture.observed_steps
    # A dispatch mode also counts the operations that copy a batch into the static inputs. It is certain that a step was
    # replayed twice only if there are at least twice as many operations as needed.
    right = needed <= seen < 2 * needed if traced else seen == needed
    if traced and capture.captures > 1 and capture.observed_steps <= seen < needed:
        sheet.leave_open(
            reasons.LAUNCHES_UNOBSERVED,
            f"the harness saw {seen} {what} in {capture.observed_steps} steps; the {capture.captures} captures hold "
            f"{per_step} on average, and it is unknown which capture each step replays",
        )
        return
    if not right:
        settle(
            reasons.LAUNCHES_DIFFER,
            f"the harness saw {seen} {what} in {capture.observed_steps} steps, but these steps need {needed}",
        )


def _require_counted(part: Capture, capture: CaptureEvidence, steps: JudgedSteps, sheet: Sheet) -> None:
    work, watch = capture.device_work, capture.every_step
    sheet.count("steps_watched", watch.steps if watch is not None else 0)
    if capture.mechanism != "traced" and work is not None:
        sheet.count("replays_watched", work.steps)
        sheet.figure("outside_share", outside_share(work))
        sheet.figure("outside_operations", watch.most_operations if watch is not None else None, "operations")
    operations = part.outside_operations_at_most
    declared = operations if "outside_operations_at_most" in part.model_fields_set else 0
    bounds = Bounds(part.outside_share_at_most, operations, declared)
    found = uncounted(part.candidate, capture, bounds, steps)
    if found is not None:
        undecided = reasons.REASONS[found.reason].status is Status.INCONCLUSIVE
        if (
            found.reason == reasons.WORK_OUTSIDE_GRAPHS
            and work is not None
            and sheet.meets("outside_share", outside_share(work), "at most", bounds.share, percent=True, beside=True)
            and watch is not None
        ):
            most = watch.most_operations
            sheet.meets("outside_operations", most, "at most", bounds.operations, "operations", beside=True)
        (sheet.leave_open if undecided else settle)(found.reason, found.message)


def _require_bounds(
    part: Capture, capture: CaptureEvidence, counts: list[int], execution: ArmEvidence, sheet: Sheet
) -> None:
    for count in counts:
        demands: list[tuple[Relation, int | None]] = [
            ("at least", part.nodes_at_least),
            ("at most", part.nodes_at_most),
        ]
        if not all(
            sheet.meets("nodes", count, relation, bound, "nodes", beside=bound <= TRIVIAL)
            for relation, bound in demands
            if bound is not None
        ):
            bounds = f"at least {part.nodes_at_least}"
            bounds += f" and at most {part.nodes_at_most}" if part.nodes_at_most is not None else ""
            settle(reasons.NODE_COUNT, f"{count} nodes were captured, but the contract requires {bounds}")
    per_layer = (part.kernels_per_layer_at_least, part.kernels_in_every_layer, part.clipped_tensors_per_layer)
    if any(demand is not None for demand in per_layer):
        _require_per_layer(part, capture, execution, sheet)
    skipped = end_of(execution).skipped_steps
    sheet.figure("skipped_steps", skipped, "steps")
    beside = "skipped_steps_at_most" not in part.model_fields_set
    if not sheet.meets("skipped_steps", skipped, "at most", part.skipped_steps_at_most, "steps", beside=beside):
        settle(
            reasons.SKIPPED_STEPS,
            f"{skipped} updates were skipped, but at most {part.skipped_steps_at_most} are allowed",
        )


def _require_per_layer(part: Capture, capture: CaptureEvidence, execution: ArmEvidence, sheet: Sheet) -> None:
    if capture.mechanism == "traced":
        settle(
            reasons.MECHANISM_MISSING,
            "the kernels of a layer can be counted only in a CUDA graph, but this capture was traced",
        )
    layers = execution.start.facts.get("layers")
    if not isinstance(layers, int) or layers < 1:
        settle(reasons.EVIDENCE_MISSING, "the system does not state its number of layers")
    sheet.count("layers", layers)
    captures = _captures(capture)
    fewest = min(sum(sum(graph.kernels.values()) for graph in graphs) for graphs in captures)
    sheet.figure("kernels_per_layer", fewest / layers, "kernels")
    demanded = part.kernels_per_layer_at_least
    if demanded is not None and not sheet.meets(
        "kernels_per_layer", fewest / layers, "at least", demanded, "kernels", beside=demanded <= TRIVIAL
    ):
        settle(
            reasons.KERNELS_PER_LAYER,
            f"{fewest} kernels in {layers} layers are fewer than the required {demanded} kernels for each layer",
        )
    if part.kernels_in_every_layer is not None:
        _require_every_layer(part.kernels_in_every_layer, captures, layers, sheet)
    if part.clipped_tensors_per_layer is not None:
        _require_clipped_tensors(part.clipped_tensors_per_layer * layers, captures, sheet)


def _require_every_layer(demanded: int, captures: list[list[GraphNodes]], layers: int, sheet: Sheet) -> None:
    """End the judgement with FAIL if the graph has too few launches for `demanded` kernels in each layer of the model.

    Nodes are counted by kernel name, because the graph does not show layers. In a model of L layers, L launches of
    kernels with the same name count as one kernel in every layer.
    """
    fewest = min(_in_every_layer(graphs, layers) for graphs in captures)
    sheet.figure("kernels_in_every_layer", fewest, "kernels")
    if not sheet.meets("kernels_in_every_layer", fewest, "at least", demanded, "kernels"):
        settle(
            reasons.KERNELS_PER_LAYER,
            f"{fewest} kernels were launched in each of {layers} layers, but {demanded} are required",
        )


def _in_every_layer(graphs: list[GraphNodes], layers: int) -> int:
    launches: Counter[str] = Counter()
    for graph in graphs:
        launches.update(graph.kernels)
    return sum(count // layers for count in launches.values())


def _require_clipped_tensors(needed: int, captures: list[list[GraphNodes]], sheet: Sheet) -> None:
    for graphs in captures:
        counts = [graph.clipped_tensors for graph in graphs if graph.clipped_tensors is not None]
        if not counts:
            settle(
                reasons.EVIDENCE_MISSING, f"the arguments of the clip kernels were not read in graph {graphs[0].label}"
            )
        sheet.figure("clipped_tensors", sum(counts), "tensors")
        if not sheet.meets("clipped_tensors", sum(counts), "exactly", needed, "tensors"):
            settle(
                reasons.CLIPPED_TENSORS,
                f"{sum(counts)} tensors are clipped inside graph {graphs[0].label}, but {needed} are required",
            )


# The following functions judge `capture_fallback`: a capture that fails must be reported, must not be tried again, and
# must not change the training.


def judge_fallback(part: CaptureFallback, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: enough steps, the capture record, attempted
    captures, equality of the training in bits."""
    run = context.only_run("paired")
    candidate, baseline = executed(run, part.candidate), executed(run, part.baseline)
    require_steps(len(candidate.series.loss), part.steps, sheet)
    capture = capture_of(part.candidate, candidate, context.mechanism(part), sheet)
    _require_reported(part.candidate, capture, context.judged_steps(candidate))
    _require_attempts(part, candidate, baseline, sheet)
    named = {part.baseline: baseline, part.candidate: candidate}
    note_watched(named, sheet)
    comparison, group = Comparison(part, context, sheet), Group(named)
    comparison.begin(group)
    exact = SeriesBounds(0.0)
    [pair] = of_two_arms(part, run)
    found = pair.difference(exact)
    note_difference(sheet, found, "bitwise", exact)
    require_equal(found, "bitwise", exact, f"{part.candidate}, whose capture failed, and {part.baseline}", sheet)
    comparison.end(group)
    return comparison.held(
        f"the capture of {part.candidate} failed and the record states the reason ({capture.failure}); captures begun: "
        f"{part.attempts}; all {found.steps} steps are equal in bits to those of {part.baseline}"
    )


def _require_reported(arm: str, capture: CaptureEvidence, steps: JudgedSteps) -> None:
    """End the judgement with FAIL unless the system's record says that nothing was captured, gives a reason, and counts
    every step as uncaptured."""
    if capture.captured or capture.replays:
        settle(
            reasons.VACUOUS_CAPTURED,
            f"{arm} was captured and replayed {capture.replays} times, so nothing shows what happens when its capture "
            "fails",
        )
    if not capture.failure or not capture.failure.strip():
        settle(reasons.FALLBACK_UNSAID, f"arm {arm} was not captured, but its record gives no reason")
    if steps.uncaptured != steps.called:
        settle(
            reasons.FALLBACK_UNSAID,
            f"arm {arm} was not captured, but its record counts {steps.uncaptured} uncaptured steps of {steps.called}",
        )


def _require_attempts(part: CaptureFallback, candidate: ArmEvidence, baseline: ArmEvidence, sheet: Sheet) -> None:
    """End the judgement with FAIL unless candidate and baseline began as many captures as the claim allows."""
    ours, theirs = end_of(candidate).capture_attempts, end_of(baseline).capture_attempts
    if ours is None or theirs is None:
        settle(reasons.EVIDENCE_MISSING, "the number of captures that were begun was not recorded; repeat the run")
    sheet.figure("capture_attempts", ours, "captures")
    sheet.figure("unasked_captures", theirs, "captures")
    if not sheet.meets("unasked_captures", theirs, "at most", part.unasked_at_most, "captures", beside=True):
        settle(
            reasons.CAPTURED_UNASKED,
            f"{part.baseline} asks for no capture but began {theirs} captures; at most "
            f"{part.unasked_at_most} are allowed",
        )
    if not sheet.meets("capture_attempts", ours, "exactly", part.attempts, "captures"):
        settle(reasons.CAPTURE_ATTEMPTS, f"{part.candidate} began {ours} captures, but {part.attempts} are required")
