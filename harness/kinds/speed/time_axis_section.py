"""Put a timing comparison on one time axis: when each process ran its blocks, and what the machine did meanwhile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Block, Telemetry, TelemetrySample, TimingEvidence
from harness.judging.statistics import Array, as_found, undisturbed
from harness.kinds.speed.pace import Slowing

GAP = 0.04  # between two processes, as a share of what all of them take


class TimedBlock(NamedTuple):
    """Seconds on the axis; milliseconds a step."""

    arm: str  # candidate or baseline
    start: float
    end: float
    step_ms: float


@dataclass(frozen=True)
class ProcessTiming:
    """One process of a timing comparison; all times are seconds on the axis."""

    process: int
    ratio: float  # the judge's; of a process that it left out the baseline's undisturbed step over the candidate's
    disturbed: int  # rounds during which something else worked on the processor
    candidate_aa: float
    baseline_aa: float
    blocks: list[TimedBlock]
    samples: list[tuple[float, TelemetrySample]]
    clocked: bool  # its blocks said when they began
    counts: bool = True  # the judge took its ratio into the mean

    @property
    def start(self) -> float:
        return self.blocks[0].start

    @property
    def end(self) -> float:
        return max([*(block.end for block in self.blocks), *(at for at, _ in self.samples)])


def side_by_side(
    runs: Sequence[RunEvidence],
    measure: Literal["step", "enqueue"] = "step",
    judged: Mapping[int, float] | None = None,
) -> list[ProcessTiming]:
    """Return the processes in order, each right after the one before: the time between them was not timed.

    A process without blocks of both arms, or without what is measured, is left out. judged: the judge's ratio of each
    process that it counted, by number. None: all count, by what is read here.
    """
    timed = [(run.timing, run.telemetry) for run in runs if run.timing]
    ordered = sorted(timed, key=lambda pair: pair[0].process)
    slowing = Slowing.of([timing for timing, _ in ordered], host_alone=measure == "enqueue")
    alone = [found for timed in ordered if (found := _alone(*timed, slowing, measure)) is not None]
    gap = GAP * sum(item.end for item in alone)
    placed, start = [], 0.0
    if judged is not None:
        alone = [replace(item, ratio=judged.get(item.process, item.ratio)) for item in alone]
        alone = [replace(item, counts=item.process in judged) for item in alone]
    for item in alone:
        placed.append(_moved(item, start))
        start += item.end + gap
    return placed


def _alone(
    timing: TimingEvidence, telemetry: Telemetry | None, slowing: Slowing, measure: Literal["step", "enqueue"]
) -> ProcessTiming | None:
    """Return one process with its first block at 0 s; None if an arm is missing or a block took no time."""
    names = {timing.candidate: "candidate", timing.baseline: "baseline"}
    blocks = [block for block in timing.blocks if block.arm in names]
    if {block.arm for block in blocks} != set(names) or not all(
        0 < float(block.seconds) < math.inf for block in blocks
    ):
        return None
    begins, taken = _begins(blocks), [float(block.seconds) for block in blocks]
    if measure == "enqueue":  # as if the whole block took what its first step took to enqueue
        blocks = [
            block.model_copy(update={"seconds": block.enqueue_seconds * max(block.steps, 1)})
            for block in blocks
            if block.enqueue_seconds
        ]
        if len(blocks) < len(taken):
            return None
    clocked = blocks[0].began is not None
    placed = [
        TimedBlock(names[block.arm], at, at + seconds, 1000 * float(block.seconds) / max(block.steps, 1))
        for block, at, seconds in zip(blocks, begins, taken, strict=True)
    ]
    disturbed, left_out = slowing.disturbed_rounds(timing), slowing.left_out(timing)
    kept = [block for block in blocks if block.round not in (left_out or ())]
    free = [block.model_copy(update={"seconds": block.seconds / slowing.factor(timing, block)}) for block in kept]
    return ProcessTiming(
        timing.process,
        float(undisturbed(_times(free, timing.baseline)) / as_found(_times(kept, timing.candidate))),
        len(disturbed),
        _self_ratio(kept, timing.candidate, as_found),
        _self_ratio(free, timing.baseline, undisturbed),
        placed,
        _samples(telemetry, blocks[0].began, max(block.end for block in placed)),
        clocked,
    )


def _times(blocks: Sequence[Block], arm: str) -> Array:
    return np.array([block.seconds / max(block.steps, 1) for block in blocks if block.arm == arm])


def _begins(blocks: Sequence[Block]) -> list[float]:
    """Return the seconds from the first block to each; without recorded times the blocks are put end to end."""
    began = [block.began for block in blocks]
    if None not in began:
        return [float(at) - float(began[0]) for at in began if at is not None and began[0] is not None]
    return [0.0, *itertools.accumulate(float(block.seconds) for block in blocks[:-1])]


def _samples(telemetry: Telemetry | None, first: float | None, end: float) -> list[tuple[float, TelemetrySample]]:
    """Return samples with seconds since the first block began, from 1 s before it to 1 s after the last one ended.

    Where no clock was recorded the first sample is put at the first block, and all are kept: the sampler kept what it
    saw from then on, two samples a second.
    """
    samples = telemetry.samples if telemetry else []
    if telemetry is None or telemetry.began is None or first is None:
        return [(float(sample.seconds) - float(samples[0].seconds), sample) for sample in samples]
    offset = float(telemetry.began) - float(first)
    placed = [(float(sample.seconds) + offset, sample) for sample in samples]
    return [(at, sample) for at, sample in placed if -1.0 <= at <= end + 1.0]


def _moved(item: ProcessTiming, by: float) -> ProcessTiming:
    blocks = [block._replace(start=block.start + by, end=block.end + by) for block in item.blocks]
    return replace(item, blocks=blocks, samples=[(at + by, sample) for at, sample in item.samples])


def _self_ratio(blocks: Sequence[Block], arm: str, step: Callable[[Array], Array]) -> float:
    """Return an arm's step in the first block of each round over that in the second; NaN without a second block."""
    rounds: dict[int, list[float]] = {}
    for block in sorted(blocks, key=lambda block: (block.round, block.position)):
        if block.arm == arm:
            rounds.setdefault(block.round, []).append(float(block.seconds) / max(block.steps, 1))
    pairs = [values for values in rounds.values() if len(values) == 2 and min(values) > 0]
    if not pairs:
        return float("nan")
    first, second = np.array(pairs).T
    return float(step(first) / step(second))
