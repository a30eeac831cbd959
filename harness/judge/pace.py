"""Rounds in which something else worked on a process's processor, by the pace measured beside each block.

The pace is that of a fixed piece of work that belongs to neither arm, before and after the block (`runners.pace`). A
round that has a block of slow pace is left out whole, whatever its times are, and so is a process that has too few
others. docs/statistics.md tells what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.contract.kinds.throughput import ThroughputRatio
from harness.evidence.pace import disturbed
from harness.evidence.run_records import TimingEvidence
from harness.judge import reasons, statistics
from harness.judge.sheet import Sheet, settle
from harness.judge.timed_launches import Process
from harness.judge.timing import StepTimes, step_times

FEWEST_ROUNDS = 2  # of a process that counts: four blocks an arm


class Counted(NamedTuple):
    """What the ratios come from: processes with the times of their undisturbed rounds, and how many a measurement has.

    enough: False where too few processes have such rounds; then all processes are here.
    """

    processes: list[Process]
    times: list[StepTimes]
    sizes: list[int]
    enough: bool

    def only(self, part: ThroughputRatio) -> str:
        """`9 of ` where so many of the processes count; nothing where all do."""
        return f"{len(self.processes)} of " if len(self.processes) < part.process_count() else ""


def disturbed_rounds(timings: Sequence[TimingEvidence]) -> list[set[int]]:
    """Of each process the rounds with a slow pace, by the least of all: they were timed on one machine.

    A block whose pace is not known is none that was disturbed.
    """
    least = _least(block.pace for timing in timings for block in timing.blocks)
    return [
        {block.round for block in timing.blocks if block.pace is not None and disturbed(block.pace, least)}
        for timing in timings
    ]


def _least(paces: Iterable[float | None]) -> float:
    return min((pace for pace in paces if pace is not None and 0 < pace < math.inf), default=math.inf)


def left_out_of(timing: TimingEvidence, rounds: set[int]) -> set[int] | None:
    """The disturbed rounds, if the process has enough others; None if it has not. One without any always has."""
    enough = len({block.round for block in timing.blocks} - rounds) >= FEWEST_ROUNDS
    return rounds if enough or not rounds else None


def counted(part: ThroughputRatio, processes: Sequence[Process], sheet: Sheet) -> Counted:
    """Leave out what was disturbed. Settles as `step_times` does."""
    timings = [process.timing for process in processes]
    for timing in timings:
        step_times(timing, part)  # what is left out has to be whole, too
    disturbed_ones = disturbed_rounds(timings)
    left_out = [left_out_of(*pair) for pair in zip(timings, disturbed_ones, strict=True)]
    if any(block.pace is not None for timing in timings for block in timing.blocks):
        sheet.figure("disturbed_rounds", sum(map(len, disturbed_ones)), "rounds")
        sheet.figure("disturbed_processes", left_out.count(None), "processes")
    times = [step_times(timing, part, rounds or ()) for timing, rounds in zip(timings, left_out, strict=True)]
    kept = [index for index, rounds in enumerate(left_out) if rounds is not None]
    sizes = [0] * part.measurements
    for index in kept:
        sizes[part.measurement_of(timings[index].process)] += 1
    if min(sizes) >= min(statistics.fewest_processes(part.confidence), part.processes):
        return Counted([processes[index] for index in kept], [times[index] for index in kept], sizes, enough=True)
    return Counted(list(processes), times, [part.processes] * part.measurements, enough=False)


def require_undisturbed(part: ThroughputRatio, counted: Counted, sheet: Sheet) -> None:
    """Settle INCONCLUSIVE where too few processes could be timed undisturbed."""
    if counted.enough:
        return
    needed = f"at least {statistics.fewest_processes(part.confidence)} others are needed"
    each = " in each measurement" if part.measurements > 1 else ""
    settle(
        reasons.PROCESSOR_DISTURBED,
        f"something else worked on the processors of {sheet.figures['disturbed_processes'].value} of "
        f"{part.process_count()} processes while they were timed, and {needed}{each}: time it on a machine whose cores "
        "nothing else uses",
    )
