"""Find what other work on the same core did to a timed block, by the processor's pace measured next to it.

The pace is that of a fixed piece of work that belongs to neither arm, before and after the block (`devices.pace`). A
slow one matters where a block waited for the host: not where the device worked nearly all along. docs/statistics.md
describes what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from harness.evidence.run_records import Block, TimingEvidence, disturbed
from harness.judging import statistics
from harness.judging.sheet import Sheet
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.timed_launches import Process
from harness.kinds.speed.timing import StepTimes, device_seconds, step_times

DEVICE_BOUND = 0.9  # of a block: a device that works for so much of it is what its steps waited for
FEWEST_ROUNDS = 2  # undisturbed ones, for a process to be judged by them alone: four blocks an arm


@dataclass(frozen=True)
class Slowing:
    """By how much blocks of one timing may have been slowed; its processes were on one machine."""

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
    """What the ratios come from: processes with their step times, and how many of them each measurement has."""

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
