"""Compute step times from the timed blocks of processes. Check that the harness observed the work of both arms in these
processes."""

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

# Other work can slow a processor and lengthen a block by a known factor. The expected time of such a block is the time
# of a typical block multiplied by this factor. A block counts as stalled if it takes at least `STALLED` times its
# expected time. Of 1,640 slowed blocks in published runs, none took more than 1.63 times its expected time.
STALLED = 2.0
# Two times that one clock gave may differ by this many seconds because of rounding. In 260 published processes, there
# were at least 3.5 ms between two blocks, and at least 178 ms between two processes.
ROUNDING_S = 1e-6


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step of each block. An array [R, 2] contains the first and the second block of an arm in each of R
    rounds. A round has four blocks in the order ABBA or BAAB (A and B are the two arms).

    candidate, baseline: the measured times. free_candidate, free_baseline: the shortest times that the blocks could
    have taken without a disturbance. excused [B]: the shortest possible times of the candidate's B blocks in rounds
    that were left out.
    """

    candidate: Array
    baseline: Array
    free_candidate: Array
    free_baseline: Array
    excused: Array

    @property
    def stalled(self) -> float:
        """Return the factor by which the candidate's mean block time increases if stalled blocks of left-out rounds are
        included. The factor is 1 if there are no such blocks.

        A stalled block took at least `STALLED` times as long as a typical block, even after correction for a slow
        processor.
        """
        stalls = self.excused[self.excused >= STALLED * np.median(self.free_candidate)]
        kept, mean = self.free_candidate.size, float(self.free_candidate.mean())
        usual = kept + self.excused.size - stalls.size
        return (usual * mean + float(stalls.sum())) / ((usual + stalls.size) * mean)


def device_seconds(timing: TimingEvidence, timings: Sequence[TimingEvidence], arm: str) -> float:
    """Return for how many seconds the device works in a step of `arm`. The number is from this process if this process
    was profiled, and otherwise the median over all profiled processes."""
    profiled = [timing] if timing.observed_steps else [each for each in timings if each.observed_steps]
    return float(median(each.observed_device_seconds.get(arm, 0.0) for each in profiled)) if profiled else 0.0


def step_times(
    timing: TimingEvidence,
    part: ThroughputRatio,
    left_out: Collection[int] = (),
    slowed: Callable[[Block], float] = lambda _block: 1.0,
) -> StepTimes:
    """Return the step times of all rounds except those in `left_out`. End the judgement with ERROR if blocks are
    invalid, too short or missing.

    slowed: a function that returns by which factor a disturbance may have lengthened a block.
    """
    for block in timing.blocks:
        if not (math.isfinite(block.seconds) and block.seconds > 0) or block.steps < 1:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {timing.process} has a block of {block.steps} steps in {block.seconds} s, but both numbers "
                "must be positive and finite",
            )
        worked = block.processor_seconds
        if worked is not None and not math.isfinite(worked):
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {timing.process} has a block with {worked} s of processor time, which is not finite",
            )
        if part.measure == "enqueue":
            _require_enqueue(timing, block)
        if block.pace is not None and not 0 < block.pace < math.inf:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"in process {timing.process}, the fixed piece of work next to a block took {block.pace} s, which is "
                "not a positive, finite time",
            )
        if block.steps < part.block_steps:
            settle(
                reasons.EVIDENCE_MISSING,
                f"process {timing.process} timed a block of {block.steps} steps, but {part.block_steps} are required",
            )
    ordered = sorted(timing.blocks, key=lambda block: (block.round, block.position))
    rounds = {number: _round(timing, part, group) for number, group in groupby(ordered, key=lambda block: block.round)}
    blocks = 2 * len(rounds)
    if blocks < part.blocks:
        settle(
            reasons.EVIDENCE_MISSING,
            f"process {timing.process} timed {blocks} blocks of each arm, but {part.blocks} are required",
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
        settle(
            reasons.EVIDENCE_MISSING, f"process {timing.process} did not time how long the host takes to enqueue a step"
        )
    if not 0 < found <= block.seconds:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"process {timing.process} enqueued a step in {found} s, but the whole block took {block.seconds} s",
        )


def _step_seconds(block: Block, part: ThroughputRatio) -> float:
    """Return the seconds per step of a block: the enqueue time or the time of a whole step, as the claim requires. Call
    this only for blocks that `step_times` has checked."""
    enqueued = block.enqueue_seconds
    return enqueued if part.measure == "enqueue" and enqueued is not None else block.seconds / block.steps


def _round(timing: TimingEvidence, part: ThroughputRatio, group: Iterable[Block]) -> dict[str, list[Block]]:
    """Return the two blocks of each arm in a round. End the judgement with ERROR unless their order is ABBA or BAAB."""
    blocks = list(group)
    arms = [block.arm for block in blocks]
    interleaved = [block.position for block in blocks] == [0, 1, 2, 3] and arms == arms[::-1]
    if not interleaved or set(arms) != {part.candidate, part.baseline}:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"the arms of round {blocks[0].round} of process {timing.process} are not interleaved: {', '.join(arms)}",
        )
    return {arm: [block for block in blocks if block.arm == arm] for arm in (part.candidate, part.baseline)}


# Two timed blocks must not overlap in time. Otherwise both blocks would share the device, and slow each other.


def require_one_after_another(timings: Sequence[TimingEvidence]) -> None:
    """End the judgement with ERROR if a block began before the previous block ended, or two processes were timed at
    once.

    Blocks without a recorded start are ignored here. `disturbances` and `speed_figures` report a missing start if they
    need it.
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
                f"the timing of process {other} began before that of process {process} ended, on the same device",
            )


def _require_over(earlier: Block, later: Block, where: str) -> None:
    if earlier.began is None or later.began is None:
        return
    if not earlier.began + earlier.seconds <= later.began + ROUNDING_S:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"in {where}, block {later.position} of round {later.round} began before block {earlier.position} of round "
            f"{earlier.round} ended, so the blocks were not timed one after the other",
        )


# The following functions check that every process of a timing observed its graph launches, and that at least one
# process observed the device's work.
#
# A process either was profiled in untimed blocks, or it counted the launches in its timed blocks. If all processes
# captured the same graphs, the device's work in a profiled process also counts for the other processes.


class Process(NamedTuple):
    """One process of a timing: the evidence of its run, and its record of timed blocks."""

    run: RunEvidence
    timing: TimingEvidence

    @property
    def profiled(self) -> bool:
        return self.timing.observed_steps > 0

    @property
    def name(self) -> str:
        return f"process {self.timing.process}"


class _Look(NamedTuple):
    """A number of observed graph launches (None if they were not observed), and the number of steps in which they were
    counted."""

    launches: int | None
    steps: int


def require_launches(
    part: ThroughputRatio, context: Context, process: Process, candidate: ArmEvidence, sheet: Sheet
) -> None:
    """End the judgement unless the harness saw a captured candidate launch its graphs once in each step."""
    demanded, capture = context.mechanism(part), candidate.capture
    if capture is not None and capture.mechanism == "traced":
        settle(reasons.MECHANISM_MISSING, "a traced replay decides nothing about speed")
    if context.contract.arms[part.candidate].capture == "none" and demanded is None:
        return
    looks = _looks(process, part.candidate)
    if not any(look.launches for look in looks) or (capture is not None and not capture.captured):
        settle(
            reasons.CANDIDATE_NOT_CAPTURED,
            f"arm {part.candidate} launched no graph in {process.name}, so its step was not captured",
        )
    if capture is None or not capture.nodes:
        settle(
            reasons.EVIDENCE_MISSING,
            f"the nodes of the graphs that {part.candidate} captured in {process.name} were not counted",
        )
    sheet.mechanism = "cuda_graph"
    for look in looks:
        needed = look.steps * graphs_per_step(capture)
        if look.launches != needed:
            where = "steps" if process.profiled else f"steps of a timed block of {part.candidate}"
            settle(
                reasons.LAUNCHES_DIFFER,
                f"{process.name} recorded {look.launches} graph launches in {look.steps} {where}, but these steps need "
                f"{needed}",
            )
    bounds = context.outside_bounds(part.candidate)
    found = uncounted(part.candidate, capture, bounds, None) if process.profiled else None
    if found is not None:
        settle(found.reason, f"{process.name}: {found.message}")


def require_declared_baseline(part: ThroughputRatio, context: Context, process: Process, baseline: ArmEvidence) -> None:
    """End the judgement if a baseline that is declared uncaptured launched a graph, or if a baseline that is declared
    captured did not launch its graphs once in each step. Such a captured baseline would be slower than declared. The
    baseline's work outside graphs is not limited."""
    named = f"{part.baseline} in {process.name}"
    looks = _looks(process, part.baseline)
    if any(look.launches is None for look in looks):
        settle(reasons.LAUNCHES_UNOBSERVED, f"the number of graphs that {named} launched was not recorded")
    launches, steps = sum(look.launches or 0 for look in looks), sum(look.steps for look in looks)
    if context.contract.arms[part.baseline].capture == "none":
        if launches:
            settle(reasons.VACUOUS_BASELINE_CAPTURED, f"{named} is declared uncaptured, but launched {launches} graphs")
        return
    capture = baseline.capture
    if capture is None:
        settle(reasons.EVIDENCE_MISSING, f"there is no capture record of {named}")
    if not capture.captured or any(look.launches != look.steps * graphs_per_step(capture) for look in looks):
        settle(
            reasons.CANDIDATE_NOT_CAPTURED,
            f"{named} is declared captured, but launched {launches} graphs in {steps} steps, so it did not replay "
            "each step",
        )


def require_profiled(part: ThroughputRatio, processes: Sequence[Process], sheet: Sheet) -> None:
    """End the judgement if no working profiler watched a process, or if a process captured graphs that no watched
    process captured."""
    profiled = [process for process in processes if process.profiled]
    counted = [process for process in processes if not process.profiled]
    if not profiled:
        settle(reasons.DEVICE_WORK_UNOBSERVED, f"none of the {len(processes)} processes was profiled")
    # Older evidence, without counted launches, has only profiled processes and no planted sync
    for process in profiled if counted else ():
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
                f"{process.name} was not profiled, and {part.candidate} captured other graphs in it than in the "
                f"profiled {profiled[0].name}",
            )


def _require_device_time(process: Process, arm: str) -> None:
    """End the judgement with INCONCLUSIVE if no work of the device was recorded in a step of `arm`. A later check, of
    the process's clock (`require_sound_clock` in `disturbances`), needs the time of this work."""
    seconds = process.timing.observed_device_seconds.get(arm, 0.0)
    if not math.isfinite(seconds):
        settle(
            reasons.TELEMETRY_MISSING,
            f"{process.name} recorded {seconds} s as the device's time in a step of {arm}, which is not a valid time",
        )
    if seconds <= 0:
        settle(
            reasons.DEVICE_WORK_UNOBSERVED,
            f"{process.name} was profiled, but recorded {seconds:g} s as the device's time in a step of {arm}",
        )


def _looks(process: Process, arm: str) -> list[_Look]:
    """Return the observed graph launches of an arm. End the judgement with INCONCLUSIVE if the profiler missed an event
    that the harness planted."""
    timing = process.timing
    if process.profiled:
        if timing.profiler_sees_planted is False:  # None: recorded before the harness planted syncs
            settle(reasons.PROFILER_BLIND, _unseen(process))
        return [_Look(timing.observed_graph_launches.get(arm), timing.observed_steps)]
    if timing.counter_sees_planted is False:
        why = timing.counter_failure or "the counter did not see a planted launch"
        settle(reasons.COUNTER_BLIND, f"{process.name} could not count graph launches: {why}")
    looks = [_Look(block.graph_launches, block.steps) for block in timing.blocks if block.arm == arm]
    if timing.counter_sees_planted is None or any(look.launches is None for look in looks):
        settle(reasons.LAUNCHES_UNOBSERVED, f"{process.name} did not record the graph launches of every step")
    return looks


def _unseen(process: Process) -> str:
    return f"the profiler of {process.name} did not see a sync planted after the steps that it watched"


def _graphs(process: Process, arm: str) -> list[str]:
    """Return the node counts of an arm's graphs as text, without the graphs' labels."""
    capture = executed(process.run, arm).capture
    nodes: list[GraphNodes] = capture.nodes if capture is not None else []
    return sorted(graph.model_copy(update={"label": ""}).model_dump_json() for graph in nodes)


# Other work on the same core may have slowed a timed block. The following functions estimate by how much. They use the
# pace of the processor right before and after the block.
#
# The pace is the time of a fixed amount of work that belongs to neither arm (`devices.pace`). A slow pace matters only
# if the device waited for the host in the block. If the device worked nearly all the time, the block was not slowed.
# docs/statistics.md describes the measurements.

# If the device works for at least this share of a block, the device limits the speed and not the host.
DEVICE_BOUND = 0.9
FEWEST_ROUNDS = 2  # disturbed rounds are left out only if at least this many undisturbed rounds remain


@dataclass(frozen=True)
class Slowing:
    """An estimate of how much other work may have slowed each block of a timing. All processes of the timing ran on one
    machine.

    least_pace: the shortest pace of a block in all processes. A pace is the seconds that a fixed piece of work took.
    """

    timings: Sequence[TimingEvidence]
    least_pace: float
    host_alone: bool = False  # True: only the host's work was timed, so the device cannot have limited the speed

    @classmethod
    def of(cls, timings: Sequence[TimingEvidence], *, host_alone: bool = False) -> Slowing:
        paces = [block.pace for timing in timings for block in timing.blocks if block.pace is not None]
        return cls(timings, min(paces, default=math.inf), host_alone)

    @property
    def is_known(self) -> bool:
        """Return True if any pace was measured. Evidence from before 2026-11-22 has no pace."""
        return math.isfinite(self.least_pace)

    def factor(self, timing: TimingEvidence, block: Block) -> float:
        """Return the factor by which a disturbance may have lengthened the block; 1 if there was no disturbance.

        The factor is the block's pace (seconds of the fixed work) divided by the shortest pace. This factor is limited,
        because without the disturbance the block would have taken at least the time for which the device worked.
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
        """Return the rounds of the process in which a block may have been slowed."""
        return {block.round for block in timing.blocks if self.factor(timing, block) > 1}

    def left_out(self, timing: TimingEvidence) -> set[int] | None:
        """Return the disturbed rounds of the process, which must not be used; None if too few rounds remain."""
        rounds = self.disturbed_rounds(timing)
        others = {block.round for block in timing.blocks} - rounds
        return rounds if not rounds or len(others) >= FEWEST_ROUNDS else None


class Counted(NamedTuple):
    """The processes whose ratios count, with their step times. sizes: the number of these processes in each
    measurement."""

    processes: list[Process]
    times: list[StepTimes]
    sizes: list[int]

    def only(self, part: ThroughputRatio) -> str:
        """Return text such as `9 of ` if some processes do not count, or "" if all processes count."""
        return f"{len(self.processes)} of " if len(self.processes) < part.process_count() else ""


def counted(part: ThroughputRatio, processes: Sequence[Process], sheet: Sheet) -> Counted:
    """Return the processes that count, with their step times. A process counts if it has enough undisturbed rounds.
    The disturbed rounds of such a process are left out.

    If too few processes have enough undisturbed rounds, all processes count. A process with too few undisturbed rounds
    then counts with all its rounds. `step_times` checks all blocks, and may end the judgement.
    """
    timings = [process.timing for process in processes]
    for timing in timings:
        step_times(timing, part)  # check all rounds here, because some are left out below
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
