"""Show timings: ratios, confidence interval, demanded ratio, each arm timed against itself, clocks and throttling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

import numpy as np

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Block, Telemetry, TelemetrySample, TimingEvidence
from harness.judging.statistics import Array, as_found, undisturbed
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.timing import Slowing
from harness.report.blocks import Part, Section, Table, table
from harness.report.charts.plots import ProcessTiming, TimedBlock, timing
from harness.report.glance import JudgedPart, counted_ratios, judged_parts
from harness.report.view import ReportView

# The following functions draw all processes of a timing on one time axis. They show the times of the blocks and the
# telemetry of the machine.

GAP = 0.04  # width of the gap between two processes in the chart, as a share of the seconds of all processes together


def side_by_side(
    runs: Sequence[RunEvidence], measure: Literal["step", "enqueue"] = "step", judged: Mapping[int, float] | None = None
) -> list[ProcessTiming]:
    """Return the chart's data of all processes, which follow one another on the time axis. A short gap between two
    processes stands for the time between them, which is not timed.

    A process is left out if it lacks blocks of an arm or the measured times. judged: number of a process -> its ratio
    from the judge, for each process that counts; None if all processes count, with ratios that are computed here.
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
    """Return the data of one process for the chart. The process's first block begins at 0 s. Return None if an arm or a
    valid time is missing."""
    names = {timing.candidate: "candidate", timing.baseline: "baseline"}
    blocks = [block for block in timing.blocks if block.arm in names]
    if {block.arm for block in blocks} != set(names) or not all(
        0 < float(block.seconds) < math.inf for block in blocks
    ):
        return None
    begins, taken = _begins(blocks), [float(block.seconds) for block in blocks]
    if measure == "enqueue":  # use the enqueue time of the block's first step as the time of every step
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
    """Return the start of each block in seconds after the start of the first block. If the starts were not recorded,
    each block begins at the end of the previous block."""
    began = [block.began for block in blocks]
    if None not in began:
        return [float(at) - float(began[0]) for at in began if at is not None and began[0] is not None]
    return [0.0, *itertools.accumulate(float(block.seconds) for block in blocks[:-1])]


def _samples(telemetry: Telemetry | None, first: float | None, end: float) -> list[tuple[float, TelemetrySample]]:
    """Return telemetry samples, each with its time in seconds after the start of the first block. Samples that are more
    than 1 s before the first block, or more than 1 s after the last block, are left out.

    If the times of samples and blocks cannot be compared, return all samples. The first sample is then at 0 s.
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
    """Return the ratio of an arm to itself, from its two blocks in each round: its step time in the first block divided
    by its step time in the second block. Return NaN if there are no second blocks."""
    rounds: dict[int, list[float]] = {}
    for block in sorted(blocks, key=lambda block: (block.round, block.position)):
        if block.arm == arm:
            rounds.setdefault(block.round, []).append(float(block.seconds) / max(block.steps, 1))
    pairs = [values for values in rounds.values() if len(values) == 2 and min(values) > 0]
    if not pairs:
        return float("nan")
    first, second = np.array(pairs).T
    return float(step(first) / step(second))


DISTURBED = (
    "In a disturbed round, something else worked on the same processor core: a fixed amount of work next to "
    "each block took longer, and the device waited for the host in a block. Such rounds are left out. A process "
    "with fewer than two undisturbed rounds is also left out, or its baseline's blocks count with the shortest time "
    "that they can have taken. Points that are left out are drawn thin and belong to no mean."
)
UNCLOCKED = (
    "This run did not record when its blocks began. The blocks are drawn end to end, and the record of the "
    "machine starts with the first block, so the two match to about a second."
)


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each `throughput_ratio` claim that was timed, or None if no claim was timed."""
    shown = []
    for judged in judged_parts(view, ThroughputRatio):
        pair = (judged.claim.candidate, judged.claim.baseline)
        timed = [run for run in judged.runs if run.timing and (run.timing.candidate, run.timing.baseline) == pair]
        shown.extend([_part(judged, timed)] if timed else [])
    lead = (
        "Each process opens both arms and times them in turn. It gives one ratio: the baseline's lower quartile "
        "divided by the candidate's median, because a disturbance only makes a block slower. A/A compares an arm "
        "with itself, from the same blocks. It shows how large a ratio becomes by noise alone."
    )
    return Section("throughput", "Throughput", lead, shown) if shown else None


def _part(judged: JudgedPart[ThroughputRatio], runs: list[RunEvidence]) -> Part:
    verdict, claim, prefix = judged.verdict, judged.claim, judged.prefix
    processes = side_by_side(runs, claim.measure, counted_ratios(verdict, prefix))
    unit = "ms a step" if claim.measure == "step" else "ms to enqueue"
    part = Part(f"{verdict.claim} · {verdict.workload}", runs=[run.run_id for run in runs])
    if processes:
        clocked = all(item.clocked for item in processes)
        if not clocked:
            part.text.append(UNCLOCKED)
        plot = timing(
            processes,
            demanded=claim.at_least,
            interval=judged.numbers("lower_bound", "upper_bound"),
            shares_clock=clocked,
        )
        part.judged.append(judged.drawn(plot))
        if any(item.disturbed for item in processes):
            part.text.append(DISTURBED)
        columns = [
            "process",
            "ratio",
            f"candidate, {unit}",
            f"baseline, {unit}",
            "A/A candidate",
            "A/A baseline",
            "blocks",
            *(["disturbed rounds", "counts"] if any(item.disturbed or not item.counts for item in processes) else []),
        ]
        part.tables.append(
            table(
                f"Processes; at least {claim.at_least:g} is required",
                columns,
                [_row(item)[: len(columns)] for item in processes],
            )
        )
    telemetry = {
        run.timing.process: run.telemetry for run in runs if run.timing and run.telemetry and run.telemetry.samples
    }
    if telemetry:
        part.tables.append(_machine(telemetry))
    return part


def _row(item: ProcessTiming) -> list[object]:
    medians = [median(block.step_ms for block in item.blocks if block.arm == arm) for arm in ("candidate", "baseline")]
    own, counts = (item.candidate_aa, item.baseline_aa), "yes" if item.counts else "no"
    return [item.process, item.ratio, *medians, *own, len(item.blocks), item.disturbed, counts]


def _machine(telemetry: Mapping[int, Telemetry]) -> Table:
    rows: list[list[object]] = []
    for process, one in telemetry.items():
        clocks = [float(item.sm_clock_mhz) for item in one.samples if item.sm_clock_mhz is not None]
        reasons = sorted({reason for item in one.samples for reason in item.throttle_reasons})
        throttled = sum(1 for item in one.samples if item.throttle_reasons)
        foreign = max(item.foreign_processes for item in one.samples)
        load = max(float(item.host_load_per_core) for item in one.samples)
        ends: list[object] = [min(clocks), max(clocks)] if clocks else [None, None]
        rows.append([process, len(one.samples), *ends, throttled, ", ".join(reasons) or "none", foreign, load])
    columns = [
        "process",
        "samples",
        "SM clock least, MHz",
        "SM clock most, MHz",
        "throttled samples",
        "throttle reasons",
        "foreign processes",
        "host load a core",
    ]
    return table("Clocks and load", columns, rows)
