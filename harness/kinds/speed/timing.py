"""Read the step times of one process from its timed blocks, and a step's device time from the profiled processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median

import numpy as np

from harness.evidence.run_records import Block, TimingEvidence
from harness.judging import reasons
from harness.judging.sheet import settle
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
