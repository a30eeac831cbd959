"""What something else on the same core did to a timed block, by the processor's pace measured beside it.

The pace is that of a fixed piece of work that belongs to neither arm, before and after the block (`runners.pace`). A
slow one matters where a block waited for the host: not where the device worked nearly all along. docs/statistics.md
tells what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.evidence.pace import disturbed
from harness.evidence.run_records import Block, TimingEvidence
from harness.judge.timing import device_seconds

DEVICE_BOUND = 0.9  # of a block: a device that works for so much of it is what its steps waited for
FEWEST_ROUNDS = 2  # undisturbed ones, for a process to be judged by them alone: four blocks an arm


@dataclass(frozen=True)
class Slowing:
    """By how much blocks of one timing may have been slowed; its processes were on one machine."""

    timings: Sequence[TimingEvidence]
    least_pace: float

    @classmethod
    def of(cls, timings: Sequence[TimingEvidence]) -> Slowing:
        paces = [block.pace for timing in timings for block in timing.blocks if block.pace is not None]
        return cls(timings, min(paces, default=math.inf))

    @property
    def is_known(self) -> bool:
        """Whether any pace was measured; evidence until 2026-11-22 has none."""
        return math.isfinite(self.least_pace)

    def factor(self, timing: TimingEvidence, block: Block) -> float:
        """How many times longer the block may have taken than undisturbed; 1 where nothing says so.

        As much as the pace is slower, and no more than would leave the device idle for no time at all.
        """
        if block.pace is None or block.steps < 1 or not disturbed(block.pace, self.least_pace):
            return 1.0
        step = block.seconds / block.steps
        working = device_seconds(timing, self.timings, block.arm)
        if working >= DEVICE_BOUND * step:
            return 1.0
        return min(block.pace / self.least_pace, step / working if working > 0 else math.inf)

    def disturbed_rounds(self, timing: TimingEvidence) -> set[int]:
        """Rounds of the process with a block that may have been slowed."""
        return {block.round for block in timing.blocks if self.factor(timing, block) > 1}

    def left_out(self, timing: TimingEvidence) -> set[int] | None:
        """The disturbed rounds, where there are enough others; None where there are not: then all count."""
        rounds = self.disturbed_rounds(timing)
        others = {block.round for block in timing.blocks} - rounds
        return rounds if not rounds or len(others) >= FEWEST_ROUNDS else None
