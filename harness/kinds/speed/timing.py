"""Read the step times of one process from its timed blocks, and a step's device time from the profiled processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from harness.evidence.arm_records import GraphNodes
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.run_records import Block, TimingEvidence, disturbed
from harness.judging import reasons, statistics
from harness.judging.context import Context, executed
from harness.judging.launched import graphs_per_step, uncounted
from harness.judging.sheet import Sheet, settle
from harness.judging.statistics import Array
from harness.kinds.speed.model import ThroughputRatio

# Next to a slow pace a block took at most 1.63 times what the pace explains, of 1,640 in published runs.
STALLED = 2.0
# Two readings of one clock may round apart; over 260 published processes at least 3.5 ms lay between two blocks, and
# 178 ms between two processes.
ROUNDING_S = 1e-6


@dataclass(frozen=True)
class StepTimes:
    """Seconds a step of each block, by arm: [R, 2], the first and the second block of each ABBA round.

    candidate, baseline: as they were found. free_candidate, free_baseline: what they would at least have taken
    undisturbed. excused: the candidate's of the rounds that were left out, by what it would have taken, too [B].
    """

    candidate: Array
    baseline: Array
    free_candidate: Array
    free_baseline: Array
    excused: Array

    @property
    def stalled(self) -> float:
        """Return how many times longer the candidate's mean block is with the left-out blocks that are at least
        `STALLED` typical ones long: a slow pace next to a block excuses only as much as it explains. 1 without any.
        """
        stalls = self.excused[self.excused >= STALLED * np.median(self.free_candidate)]
        kept, mean = self.free_candidate.size, float(self.free_candidate.mean())
        usual = kept + self.excused.size - stalls.size
        return (usual * mean + float(stalls.sum())) / ((usual + stalls.size) * mean)


def device_seconds(timing: TimingEvidence, timings: Sequence[TimingEvidence], arm: str) -> float:
    """Return the device's seconds in a step of the arm: as this process saw it, else the median of those that did."""
    profiled = [timing] if timing.observed_steps else [each for each in timings if each.observed_steps]
    return float(median(each.observed_device_seconds.get(arm, 0.0) for each in profiled)) if profiled else 0.0


def step_times(
    timing: TimingEvidence,
    part: ThroughputRatio,
    left_out: Collection[int] = (),
    slowed: Callable[[Block], float] = lambda _block: 1.0,
) -> StepTimes:
    """Return the step times of rounds not in `left_out`; `slowed` returns how many times longer a block may have taken.

    Settles ERROR when a block is torn or too short, blocks are missing, or a round is not ABBA.
    """
    for block in timing.blocks:
        if not (math.isfinite(block.seconds) and block.seconds > 0) or block.steps < 1:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {timing.process} has a block of {block.steps} steps in {block.seconds} s",
            )
        worked = block.processor_seconds
        if worked is not None and not math.isfinite(worked):
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {timing.process} has a block with {worked} s of processor time",
            )
        if part.measure == "enqueue":
            _require_enqueue(timing, block)
        if block.pace is not None and not 0 < block.pace < math.inf:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {timing.process} has a block beside which a fixed piece of work took {block.pace} s",
            )
        if block.steps < part.block_steps:
            settle(
                reasons.EVIDENCE_MISSING,
                f"process {timing.process} timed a block of {block.steps} steps, {part.block_steps} are demanded",
            )
    ordered = sorted(timing.blocks, key=lambda block: (block.round, block.position))
    rounds = {number: _round(timing, part, group) for number, group in groupby(ordered, key=lambda block: block.round)}
    blocks = 2 * len(rounds)
    if blocks < part.blocks:
        settle(
            reasons.EVIDENCE_MISSING,
            f"process {timing.process} timed {blocks} blocks an arm, {part.blocks} are demanded",
        )
    kept = [each for number, each in rounds.items() if number not in left_out]
    arms = (part.candidate, part.baseline)
    found = [np.array([[_step_seconds(block, part) for block in each[arm]] for each in kept]) for arm in arms]
    longer = [np.array([[slowed(block) for block in each[arm]] for each in kept]) for arm in arms]
    free = [times / factors for times, factors in zip(found, longer, strict=True)]
    left = [block for number, each in rounds.items() if number in left_out for block in each[part.candidate]]
    excused = np.array([_step_seconds(block, part) / slowed(block) for block in left])
    (candidate, baseline), (free_candidate, free_baseline) = found, free
    return StepTimes(candidate, baseline, free_candidate, free_baseline, excused)


def _require_enqueue(timing: TimingEvidence, block: Block) -> None:
    found = block.enqueue_seconds
    if found is None:
        settle(reasons.EVIDENCE_MISSING, f"process {timing.process} did not time how long a step's launches take")
    if not 0 < found <= block.seconds:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"process {timing.process} enqueued a step in {found} s, within a block of {block.seconds} s",
        )


def _step_seconds(block: Block, part: ThroughputRatio) -> float:
    """Return the compared seconds a step of a block that `step_times` has checked."""
    enqueued = block.enqueue_seconds
    return enqueued if part.measure == "enqueue" and enqueued is not None else block.seconds / block.steps


def _round(timing: TimingEvidence, part: ThroughputRatio, group: Iterable[Block]) -> dict[str, list[Block]]:
    """Return the two blocks of each arm in one round; settle ERROR unless it is ABBA or BAAB."""
    blocks = list(group)
    arms = [block.arm for block in blocks]
    interleaved = [block.position for block in blocks] == [0, 1, 2, 3] and arms == arms[::-1]
    if not interleaved or set(arms) != {part.candidate, part.baseline}:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"round {blocks[0].round} of process {timing.process} is not interleaved: {', '.join(arms)}",
        )
    return {arm: [block for block in blocks if block.arm == arm] for arm in (part.candidate, part.baseline)}


# Arms that do not take turns are each hit by another part of a drift, and blocks that overlap share the device.


def require_one_after_another(timings: Sequence[TimingEvidence]) -> None:
    """Settle ERROR unless each block began when the one before it was over, and no two processes were timed at once.

    Blocks without a recorded beginning are left to the checks that need one (`disturbances`, `speed_figures`).
    """
    spans = []
    for timing in timings:
        blocks = sorted(timing.blocks, key=lambda block: (block.round, block.position))
        for earlier, later in pairwise(blocks):
            _require_over(earlier, later, f"process {timing.process}")
        if all(block.began is not None for block in blocks):
            spans.append((blocks[0].began or 0.0, timing.process, blocks[-1]))
    spans.sort(key=lambda span: span[:2])
    for (_, process, last), (began, other, _) in pairwise(spans):
        if not (last.began or 0.0) + last.seconds <= began + ROUNDING_S:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {other} began to be timed before process {process} was over, on one device",
            )


def _require_over(earlier: Block, later: Block, where: str) -> None:
    if earlier.began is None or later.began is None:
        return
    if not earlier.began + earlier.seconds <= later.began + ROUNDING_S:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"in {where} block {later.position} of round {later.round} began before block {earlier.position} of round "
            f"{earlier.round} was over: they did not take turns as they say",
        )


# Check that every process of a timing saw its graph launches, and at least one saw what the device
# did under them.
#
# A process either was profiled, in untimed blocks, or counted the launches of the timed ones. What
# a profiled process shows of the device holds for the others, as long as they captured the same
# graphs.


class Process(NamedTuple):
    """One process of the comparison."""

    run: RunEvidence
    timing: TimingEvidence

    @property
    def profiled(self) -> bool:
        return self.timing.observed_steps > 0

    @property
    def name(self) -> str:
        return f"process {self.timing.process}"


class _Look(NamedTuple):
    """Graph launches seen in some steps; None: not looked for."""

    launches: int | None
    steps: int


def require_launches(
    part: ThroughputRatio, context: Context, process: Process, candidate: ArmEvidence, sheet: Sheet
) -> None:
    """Settle unless a candidate that claims to be captured launches its graphs once a step, as the harness saw it."""
    demanded, capture = context.mechanism(part), candidate.capture
    if capture is not None and capture.mechanism == "traced":
        settle(reasons.MECHANISM_MISSING, "a traced replay decides nothing about speed")
    if context.contract.arms[part.candidate].capture == "none" and demanded is None:
        return
    looks = _looks(process, part.candidate)
    if not any(look.launches for look in looks) or (capture is not None and not capture.captured):
        settle(
            reasons.CANDIDATE_NOT_CAPTURED,
            f"arm {part.candidate} launched no graph in {process.name}: its step was not captured",
        )
    if capture is None or not capture.nodes:
        settle(
            reasons.EVIDENCE_MISSING, f"the graphs that {part.candidate} captured in {process.name} were not counted"
        )
    sheet.mechanism = "cuda_graph"
    for look in looks:
        needed = look.steps * graphs_per_step(capture)
        if look.launches != needed:
            where = "steps" if process.profiled else f"steps of a timed block of {part.candidate}"
            settle(
                reasons.LAUNCHES_DIFFER,
                f"{process.name} saw {look.launches} graph launches in {look.steps} {where}, which need {needed}",
            )
    bounds = context.outside_bounds(part.candidate)
    found = uncounted(part.candidate, capture, bounds, None) if process.profiled else None
    if found is not None:
        settle(found.reason, f"{process.name}: {found.message}")


def require_declared_baseline(part: ThroughputRatio, context: Context, process: Process, baseline: ArmEvidence) -> None:
    """Settle unless a baseline declared uncaptured launches no graph, and a captured one its graphs once a step: one
    that ran uncaptured instead is slower than what was to be beaten. Its work outside its graphs is not limited.
    """
    named = f"{part.baseline} in {process.name}"
    looks = _looks(process, part.baseline)
    if any(look.launches is None for look in looks):
        settle(reasons.LAUNCHES_UNOBSERVED, f"whether {named} launched graphs was not observed")
    launches, steps = sum(look.launches or 0 for look in looks), sum(look.steps for look in looks)
    if context.contract.arms[part.baseline].capture == "none":
        if launches:
            settle(reasons.VACUOUS_BASELINE_CAPTURED, f"{named}, declared uncaptured, launched {launches} graphs")
        return
    capture = baseline.capture
    if capture is None:
        settle(reasons.EVIDENCE_MISSING, f"there is no capture record of {named}")
    if not capture.captured or any(look.launches != look.steps * graphs_per_step(capture) for look in looks):
        settle(
            reasons.CANDIDATE_NOT_CAPTURED,
            f"{named}, declared captured, launched {launches} graphs in {steps} steps: it did not replay each of them",
        )


def require_profiled(part: ThroughputRatio, processes: Sequence[Process], sheet: Sheet) -> None:
    """Settle unless a profiler that sees watched at least one process, and the others captured the same graphs."""
    profiled = [process for process in processes if process.profiled]
    counted = [process for process in processes if not process.profiled]
    if not profiled:
        settle(reasons.DEVICE_WORK_UNOBSERVED, f"none of {len(processes)} processes was profiled")
    for process in profiled if counted else ():  # evidence of before has profiled processes alone, and shown no sync
        if not process.timing.profiler_sees_planted:
            settle(reasons.PROFILER_BLIND, _unseen(process))
    if sheet.mechanism != "cuda_graph":
        return
    for process in profiled:
        for arm in (part.candidate, part.baseline):
            _require_device_time(process, arm)
    shown = [_graphs(process, part.candidate) for process in profiled]
    for process in counted:
        if _graphs(process, part.candidate) not in shown:
            settle(
                reasons.GRAPHS_DIFFER,
                f"{part.candidate} captured other graphs in {process.name}, which was not profiled, than in "
                f"{profiled[0].name}, which was",
            )


def _require_device_time(process: Process, arm: str) -> None:
    """Settle unless a graph took device time: else no clock contradicts the process's own (`disturbances`)."""
    seconds = process.timing.observed_device_seconds.get(arm, 0.0)
    if not math.isfinite(seconds):
        settle(reasons.TELEMETRY_MISSING, f"{process.name} saw the device work for {seconds} s in a step of {arm}")
    if seconds <= 0:
        settle(
            reasons.DEVICE_WORK_UNOBSERVED,
            f"{process.name} was profiled, and saw the device work for {seconds:g} s in a step of {arm}",
        )


def _looks(process: Process, arm: str) -> list[_Look]:
    """Return the observations of an arm's launches; settle INCONCLUSIVE where the observer was blind or missing."""
    timing = process.timing
    if process.profiled:
        if timing.profiler_sees_planted is False:  # None: recorded before a sync was planted
            settle(reasons.PROFILER_BLIND, _unseen(process))
        return [_Look(timing.observed_graph_launches.get(arm), timing.observed_steps)]
    if timing.counter_sees_planted is False:
        why = timing.counter_failure or "a planted launch was not seen"
        settle(reasons.COUNTER_BLIND, f"{process.name} could not count graph launches: {why}")
    looks = [_Look(block.graph_launches, block.steps) for block in timing.blocks if block.arm == arm]
    if timing.counter_sees_planted is None or any(look.launches is None for look in looks):
        settle(reasons.LAUNCHES_UNOBSERVED, f"{process.name} observed no step's graph launches")
    return looks


def _unseen(process: Process) -> str:
    return f"the profiler of {process.name} did not see a sync planted after the steps that it watched"


def _graphs(process: Process, arm: str) -> list[str]:
    """Return the census of an arm's graphs, without their labels."""
    capture = executed(process.run, arm).capture
    nodes: list[GraphNodes] = capture.nodes if capture is not None else []
    return sorted(graph.model_copy(update={"label": ""}).model_dump_json() for graph in nodes)


# Find what other work on the same core did to a timed block, by the processor's pace measured next
# to it.
#
# The pace is that of a fixed piece of work that belongs to neither arm, before and after the block
# (`devices.pace`). A slow one matters where a block waited for the host: not where the device
# worked nearly all along. docs/statistics.md describes what was seen.

DEVICE_BOUND = 0.9  # of a block: a device that works for so much of it is what its steps waited for
FEWEST_ROUNDS = 2  # undisturbed ones, for a process to be judged by them alone: four blocks an arm


@dataclass(frozen=True)
class Slowing:
    """How much blocks of one timing may have been slowed; its processes were on one machine."""

    timings: Sequence[TimingEvidence]
    least_pace: float
    host_alone: bool = False  # what was timed is the host's work, which no device bounds

    @classmethod
    def of(cls, timings: Sequence[TimingEvidence], *, host_alone: bool = False) -> Slowing:
        paces = [block.pace for timing in timings for block in timing.blocks if block.pace is not None]
        return cls(timings, min(paces, default=math.inf), host_alone)

    @property
    def is_known(self) -> bool:
        """Return True if any pace was measured; evidence until 2026-11-22 has none."""
        return math.isfinite(self.least_pace)

    def factor(self, timing: TimingEvidence, block: Block) -> float:
        """Return how many times longer the block may have taken than undisturbed; 1 where nothing shows a disturbance.

        The factor is that of the pace, and at most the one that leaves the device no idle time.
        """
        if block.pace is None or block.steps < 1 or not disturbed(block.pace, self.least_pace):
            return 1.0
        if self.host_alone:
            return block.pace / self.least_pace
        step = block.seconds / block.steps
        working = device_seconds(timing, self.timings, block.arm)
        if working >= DEVICE_BOUND * step:
            return 1.0
        return min(block.pace / self.least_pace, step / working if working > 0 else math.inf)

    def disturbed_rounds(self, timing: TimingEvidence) -> set[int]:
        """Return the process's rounds with a block that may have been slowed."""
        return {block.round for block in timing.blocks if self.factor(timing, block) > 1}

    def left_out(self, timing: TimingEvidence) -> set[int] | None:
        """Return the disturbed rounds, where there are enough other rounds; None where there are not."""
        rounds = self.disturbed_rounds(timing)
        others = {block.round for block in timing.blocks} - rounds
        return rounds if not rounds or len(others) >= FEWEST_ROUNDS else None


class Counted(NamedTuple):
    """Processes that the ratios come from, with their step times, and how many of them each measurement has."""

    processes: list[Process]
    times: list[StepTimes]
    sizes: list[int]

    def only(self, part: ThroughputRatio) -> str:
        """Return `9 of ` where only so many of the processes count; "" where all do."""
        return f"{len(self.processes)} of " if len(self.processes) < part.process_count() else ""


def counted(part: ThroughputRatio, processes: Sequence[Process], sheet: Sheet) -> Counted:
    """Return the undisturbed rounds of processes with enough of them; of all processes, where those are too few.

    A process without enough undisturbed rounds counts with all its rounds then. Settles as `step_times` does.
    """
    timings = [process.timing for process in processes]
    for timing in timings:
        step_times(timing, part)  # what is left out has to be sound, too
    slowing = Slowing.of(timings, host_alone=part.measure == "enqueue")
    left_out = [slowing.left_out(timing) for timing in timings]
    if slowing.is_known:
        sheet.figure("disturbed_rounds", sum(len(slowing.disturbed_rounds(timing)) for timing in timings), "rounds")
        sheet.figure("disturbed_processes", left_out.count(None), "processes")
    times = [
        step_times(timing, part, rounds or (), partial(slowing.factor, timing))
        for timing, rounds in zip(timings, left_out, strict=True)
    ]
    kept = [index for index, rounds in enumerate(left_out) if rounds is not None]
    sizes = [0] * part.measurements
    for index in kept:
        sizes[part.measurement_of(timings[index].process)] += 1
    if min(sizes) < min(statistics.fewest_processes(part.confidence), part.processes):
        kept, sizes = list(range(len(processes))), [part.processes] * part.measurements
    return Counted([processes[index] for index in kept], [times[index] for index in kept], sizes)
