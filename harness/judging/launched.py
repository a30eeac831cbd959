"""Check that the steps of a captured arm launch only graphs whose nodes the harness counted, and that these graphs do
nearly all work of the GPU.

The number of launches alone proves little, because an uncaptured training could launch a small graph in each step.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from harness.evidence.arm_records import LOSS_OUTPUT, CaptureEvidence, DeviceWork, GhostReplay, GraphNodes, Launched
from harness.judging import reasons
from harness.judging.sheet import number, some

OUTSIDE_SHARE = 0.05  # largest share of device time outside of graphs; a claim may set another limit
OUTSIDE_OPERATIONS = 100
_ACTIVITIES = ("kernel", "memcpy", "memset")  # the types of graph nodes that the profiler shows
# The content of a graph: the number of each of its kernels, by name, and its number of activities of each type.
_Content = tuple[frozenset[tuple[str, int]], tuple[int, ...]]


class Bounds(NamedTuple):
    """Bounds on the work that a step may do outside of its graphs.

    share: largest share of the device time. operations: largest number of operations. after_traced: largest number of
    operations outside of the replay of a recorded step, also after the step; 0 unless a claim allows more.
    """

    share: float = OUTSIDE_SHARE
    operations: int = OUTSIDE_OPERATIONS
    after_traced: int = 0


DEFAULT = Bounds()


class Finding(NamedTuple):
    """The result of a failed check: a reason code, and a message that says what is wrong."""

    reason: str
    message: str


class JudgedSteps(NamedTuple):
    """How many steps of an arm are judged (`called`), and how many steps are exceptions.

    called: all steps without the `warm` steps, which are the plain steps that the contract allows before the capture.
    unseen: steps that cannot be observed: steps in which a capture is made, and the first step of each shape.
    uncaptured: steps that ran outside of the capture, including plain steps beyond the allowed number.
    still: True if the last losses are all equal, so that it is unknown whether a step reads its batch.
    """

    called: int
    unseen: int
    uncaptured: int = 0
    warm: int = 0
    still: bool = False


def unwatched(what: str, watched: int, steps: JudgedSteps) -> Finding | None:
    """Return what is wrong if fewer steps were observed (`watched`) than can be observed, else None. what: the observed
    events, for the message."""
    if watched >= steps.called - steps.unseen:
        return None
    return Finding(
        reasons.STEPS_UNWATCHED, f"{what} were looked for in only {watched} of its {steps.called} judged steps"
    )


def uncounted(arm: str, capture: CaptureEvidence, bounds: Bounds, steps: JudgedSteps | None) -> Finding | None:
    """Return None if the evidence shows that the steps were replays of the captured graphs whose nodes the harness
    counted. Otherwise return what is wrong. steps: None if single steps are not observed in this run."""
    if capture.mechanism == "traced":
        outside = untraced(arm, capture, steps) or _traced(arm, capture)
        return outside or unreplayed(arm, capture, bounds, steps) or _after(arm, capture, bounds)
    unseen = blind(arm, capture)
    if unseen is not None:
        return unseen
    work = capture.device_work
    if work is None:
        return Finding(reasons.REPLAYS_UNWATCHED, f"the work of the device in the replays of {arm} was not recorded")
    outside = _outside(arm, work, bounds.share) or _busiest(arm, capture, bounds, steps)
    found = _launched(arm, work, capture) or outside or unreplayed(arm, capture, bounds, steps)
    return found or _after_share(arm, work, bounds.share) or (_after(arm, capture, bounds) if steps else None)


def unreplayed(arm: str, capture: CaptureEvidence, bounds: Bounds, steps: JudgedSteps | None) -> Finding | None:
    """Return what is wrong if a test did not show that the step's outputs depend on its replays.

    In the test, a step is executed without its replays. Return None if the outputs depend on the replays, or if the
    test was not made. The loss need not depend on replays if the claim allows more work outside of the graphs than the
    default bound allows.
    """
    ghost = capture.ghost
    if ghost is None:  # without a test, the evidence is of an older version or of several ranks
        return None
    outside = ghost.outside - (LOSS_OUTPUT in ghost.named and bounds.share > DEFAULT.share)
    if outside:
        return Finding(
            reasons.OUTPUT_NOT_FROM_REPLAY,
            f"in {some(ghost.named)}, a step of arm {arm} gives equal bits with and without its replays",
        )
    if ghost.reads is False and not (steps and steps.still):
        return Finding(
            reasons.OUTPUT_NOT_FROM_REPLAY, f"all outputs of a step of arm {arm} have equal bits on a different batch"
        )
    why = next(_doubts(ghost), None)
    message = f"nothing shows that the replays of arm {arm} compute the step's outputs: {why}"
    return Finding(reasons.REPLAY_UNPROVEN, message) if why else None


def _doubts(ghost: GhostReplay) -> Iterator[str]:
    """Yield the reasons why it is not proven that the replays compute the outputs of the step."""
    if ghost.reads is False:
        yield "the outputs and the last losses are equal for every batch; compare fewer steps"
    if ghost.unsure:
        yield f"without its replays a step gives {ghost.unsure} outputs that differ from the replays' and do not repeat"
    if ghost.alike and not ghost.moves_alone:
        yield (
            f"all steps read the same batch, and without its replays a step gives {ghost.alike} parameters the same "
            "update; use a different batch in each step"
        )
    if ghost.stays and ghost.moves and not ghost.moves_alone:
        yield "a step changes parameters, but its replays alone do not"
    if ghost.stays and ghost.moves and ghost.alone_reads is False:
        yield "the replays alone give the same update for a different batch"
    if ghost.failure and not ghost.moves_alone:
        yield f"the step failed without its replays ({ghost.failure}), and the replays alone change no parameter"
    compared = ghost.moves is not None and (ghost.stays is not None or not ghost.replays)
    if ghost.moves_alone is None or not (compared or ghost.failure):
        yield "the record of the replays is incomplete"


def blind(arm: str, capture: CaptureEvidence) -> Finding | None:
    """Return what is wrong if the profiler did not see a host sync that the harness planted, because an empty profile
    then proves nothing. Otherwise return None."""
    # None: evidence of an older version, in which no host sync was planted
    if capture.profiler_sees_planted is not False:
        return None
    return Finding(
        reasons.PROFILER_BLIND, f"the profiler that watched {arm} did not see a sync planted after the watched steps"
    )


def outside_share(work: DeviceWork, after: float = 0.0) -> float:
    """Return the share of the replayed steps' device time that was spent in kernels outside of the graphs. Return NaN
    if this share is not finite. after: seconds of kernels after the step, which also count as outside of the graphs."""
    outside = work.outside_kernel_seconds + after
    total = work.launched_seconds + outside
    return outside / total if 0 < total < math.inf else math.nan


def _launched(arm: str, work: DeviceWork, capture: CaptureEvidence) -> Finding | None:
    """Return what is wrong with the graph launches that the profiler recorded, or None. The number of launches must be
    the number of graphs in one capture times the number of steps. Each launch must do exactly the work of one captured
    graph, whose nodes the harness counted."""
    launches, needed = sum(each.launches for each in work.launched), work.steps * graphs_per_step(capture)
    if launches != needed or needed == 0:
        return Finding(
            reasons.LAUNCHES_DIFFER,
            f"{launches} graph launches were seen in {work.steps} replays of {arm}, but these replays need {needed}",
        )
    known = {_content(graph) for graph in capture.nodes}
    for each in work.launched:
        if _content(each) not in known:
            counted = {name for graph in capture.nodes for name in graph.kernels}
            unknown = sorted(set(_kernels(each)) - counted)
            named = f", among them {some([name[:80] for name in unknown])}" if unknown else ""
            return Finding(
                reasons.LAUNCHED_OTHERWISE,
                f"a graph launch of {arm} ran {_described(each)}{named}; no captured graph holds exactly this work "
                f"(captured: {some([f'{graph.label}: {_described(graph)}' for graph in capture.nodes])})",
            )
    return _unevenly(arm, work, capture)


def _unevenly(arm: str, work: DeviceWork, capture: CaptureEvidence) -> Finding | None:
    """Return None if each step launched each piece of its capture exactly once, and otherwise what is wrong. A piece is
    a graph that captures a part of the step.

    If a step was captured several times, each piece has several graphs, and a step may launch any one of these graphs.
    A second launch of one piece does not replace another piece. Pieces with equal content are counted together.
    """
    pieces, places = graphs_per_step(capture), defaultdict[_Content, set[int]](set)
    for index, graph in enumerate(capture.nodes):
        places[_content(graph)].add(index % pieces)
    for pool in _pools(places.values()):
        seen = sum(each.launches for each in work.launched if places[_content(each)] <= pool)
        if seen != work.steps * len(pool):
            labels = [graph.label for index, graph in enumerate(capture.nodes) if index % pieces in pool]
            return Finding(
                reasons.LAUNCHES_DIFFER,
                f"{seen} launches of {some(labels)} were seen in {work.steps} replays of {arm}, but these replays need "
                f"{work.steps * len(pool)}",
            )
    return None


def _pools(places: Iterable[set[int]]) -> list[set[int]]:
    """Join all sets that have a member in common. Return the joined sets, of which no two have a common member."""
    pools: list[set[int]] = []
    for each in places:
        touching = [pool for pool in pools if pool & each]
        pools = [*(pool for pool in pools if not pool & each), each.union(*touching)]
    return pools


def graphs_per_step(capture: CaptureEvidence) -> int:
    """Return how many graphs a step launches: several if it is captured in pieces, such as forward and backward."""
    graphs = len(capture.nodes)
    return graphs // capture.captures if capture.captures and graphs and graphs % capture.captures == 0 else 1


def _content(graph: GraphNodes | Launched) -> _Content:
    """Return the content by which a graph's launches are recognized: the number of each kernel and type of activity."""
    kernels = _kernels(graph) if isinstance(graph, Launched) else graph.kernels
    return frozenset(kernels.items()), tuple(_activities(graph).values())


def _kernels(launched: Launched) -> dict[str, int]:
    """Return the kernels of a launch, without kernels that the driver uses to copy or fill memory."""
    return {name: count for name, count in launched.kernels.items() if not _drivers_own(name)}


def _drivers_own(name: str) -> str | None:
    """Return `memcpy` or `memset` if the driver uses a kernel of this name for a node that copies or fills memory, else
    None. H200s and H100s showed the names `memcpy32_post` and `memset32`."""
    match = re.fullmatch(r"(memcpy|memset)(?:\d+|\w*_post)", name)
    return match.group(1) if match else None


def _activities(graph: GraphNodes | Launched) -> dict[str, int]:
    """Return how many nodes a graph has, or how many activities a launch has, of each type that the profiler shows."""
    types = Counter[str]()
    for name, count in graph.by_type.items():
        types[plain_type(name)] += count
    for name, count in graph.kernels.items() if isinstance(graph, Launched) else ():
        own = _drivers_own(name)
        if own is not None:
            types["kernel"] -= count
            types[own] += count
    return {kind: types[kind] for kind in _ACTIVITIES}


def plain_type(name: str) -> str:
    """Return the name of a type of graph nodes in one spelling, such as `memalloc` for `cudaGraphNodeTypeMemAlloc`,
    `MEM_ALLOC` and `mem_alloc`."""
    return name.lower().removeprefix("cudagraphnodetype").replace("_", "")


def _described(graph: GraphNodes | Launched) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in _activities(graph).items() if count) or "nothing"


def _outside(arm: str, work: DeviceWork, share: float) -> Finding | None:
    spent = outside_share(work)
    if spent <= share:
        return None
    return Finding(
        reasons.WORK_OUTSIDE_GRAPHS,
        f"{number(spent)} of the device time of {arm} was spent in kernels outside its graphs (at most {number(share)} "
        f"is allowed): {_names(work)}",
    )


def _busiest(arm: str, capture: CaptureEvidence, bounds: Bounds, steps: JudgedSteps | None) -> Finding | None:
    """Return what is wrong if a judged step was not observed, or if a step had more than `bounds.operations` operations
    outside of its graphs. Otherwise return None."""
    watch = capture.every_step
    if steps is None:
        return None
    if watch is None or watch.steps == 0:
        return Finding(reasons.REPLAYS_UNWATCHED, f"the steps of {arm} were not watched one by one")
    if watch.most_operations > bounds.operations:
        return Finding(
            reasons.WORK_OUTSIDE_GRAPHS,
            f"step {watch.busiest_step} of {arm} issued {watch.most_operations} operations outside its graphs, but at "
            f"most {bounds.operations} are allowed",
        )
    return unwatched(f"operations of {arm} outside its graphs", watch.steps, steps)


def _after(arm: str, capture: CaptureEvidence, bounds: Bounds) -> Finding | None:
    """Return what is wrong if more operations ran outside of a step's replay than the bound allows. Operations after
    the step count, too. Otherwise return None.

    The replay of a recorded step has no device times, which would show how much of the work the replays do. A claim's
    bound may therefore raise the default bound for such a replay only if a test showed that the replays change the
    parameters even when the step's code is not executed.
    """
    watch, seen = capture.every_step, capture.observed_replayed_operations
    if watch is None or not watch.most_after:
        return None
    outside, allowed = watch.most_operations + watch.most_after - (watch.fewest_replayed or 0), bounds.operations
    trains, of = True, ""
    if capture.mechanism == "traced" and seen:
        of = f" of {number(seen / capture.observed_steps)} operations"
        allowed = math.ceil(2 * seen / capture.observed_steps) - 1 - (watch.fewest_replayed or 0)
        trains = capture.ghost is not None and bool(capture.ghost.moves_alone)
        allowed = max(allowed, bounds.after_traced if trains else 0)
    if outside <= allowed:
        return None
    decides = (
        f"set `outside_operations_at_most: {outside}` in the arm's `capture` claim to allow them"
        if trains
        else "nothing shows that the replays alone train, so move the training work into the step, or judge the claim "
        "on a GPU"
    )
    return Finding(
        reasons.WORK_AFTER_STEP,
        f"`after` of arm {arm} issued {watch.most_after} operations next to a replay{of}: {outside} operations ran "
        f"outside the replay, but {allowed} are allowed; {decides}",
    )


def _after_share(arm: str, work: DeviceWork, share: float) -> Finding | None:
    """Return what is wrong if kernels outside the graphs, including kernels after the step, took more than `share` of
    the device time. Otherwise return None."""
    spent = outside_share(work, work.after_kernel_seconds)
    if spent <= share:
        return None
    return Finding(
        reasons.WORK_AFTER_STEP,
        f"`after` of arm {arm} ran kernels, so that {number(spent)} of the device time was spent outside its graphs, "
        f"but {number(share)} is allowed: raise `outside_share_at_most` in the arm's `capture` claim to allow more",
    )


def _names(work: DeviceWork) -> str:
    per_step = 1e3 / work.steps
    return some([f"{each.name[:80]} ({per_step * each.seconds:.3g} ms a step)" for each in work.outside])


def untraced(arm: str, capture: CaptureEvidence, steps: JudgedSteps | None) -> Finding | None:
    """Return None if the replays of a recorded step were observed in every judged step, and otherwise what is wrong."""
    watch = capture.every_step
    if watch is None or watch.steps == 0:
        return Finding(reasons.REPLAYS_UNWATCHED, f"the replays of {arm} were not watched step by step")
    if not capture.observed_steps or not capture.observed_replayed_operations:
        return Finding(reasons.LAUNCHES_UNOBSERVED, f"no replayed operations of {arm} were observed by the harness")
    return None if steps is None else unwatched(f"replayed operations of {arm}", watch.steps, steps)


def _traced(arm: str, capture: CaptureEvidence) -> Finding | None:
    """Return None if each judged step issued and replayed about as many operations as the separately observed replays
    did on average. Otherwise return what is wrong."""
    watch, seen = capture.every_step, capture.observed_replayed_operations
    if watch is None or not seen:
        return None  # `untraced` reports that these numbers are missing
    usual = seen / capture.observed_steps
    if watch.most_operations >= 2 * usual or 2 * watch.fewest_operations <= usual:
        return Finding(
            reasons.WORK_OUTSIDE_GRAPHS,
            f"a replay of {arm} consists of {number(usual)} operations, but its judged steps issued "
            f"{watch.fewest_operations} to {watch.most_operations} operations (the most in step {watch.busiest_step})",
        )
    if watch.fewest_replayed is not None and 2 * watch.fewest_replayed <= usual:
        return Finding(
            reasons.WORK_OUTSIDE_GRAPHS,
            f"a replay of {arm} consists of {number(usual)} operations, but one of its judged steps replayed only "
            f"{watch.fewest_replayed}",
        )
    return None
