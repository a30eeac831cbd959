"""Show timings: each process's ratio, the interval, the demanded bound, A/A controls, clocks and throttling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Block, Telemetry, TelemetrySample, TimingEvidence
from harness.judging.statistics import Array, as_found, undisturbed
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.timing import Slowing
from harness.report.blocks import Part, Section, Table, table
from harness.report.charts.compact import ALONG
from harness.report.charts.plots import BROAD, COLOURS, Role, decimate
from harness.report.charts.svg import (
    BASELINE,
    CANDIDATE,
    GRID,
    INK,
    LIMIT,
    MUTED,
    SERIES,
    Plot,
    draw,
    drawn_once,
    legend,
    named,
    plain,
)
from harness.report.glance import JudgedPart, counted_ratios, judged_parts
from harness.report.text import label
from harness.report.view import ReportView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Put a timing comparison on one time axis: when each process ran its blocks, and what the machine
# did meanwhile.

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


DISTURBED = (
    "In a disturbed round something else worked on the same processor core, by the pace of a fixed piece of work "
    "beside each block, and a block waited for the host. Such rounds are left out; a process with fewer than two "
    "others is, too, or its baseline's blocks count as the shorter that they would at least have been. What is "
    "left out is drawn thin, and no mean has it."
)
UNCLOCKED = (
    "This run did not record when its blocks began: they are drawn end to end, and what the machine did is laid "
    "beside them from the first block on, right to about a second."
)
SAMPLES = 160  # of a reading that are drawn, of all processes together
Reading = Callable[[TelemetrySample], float | None]
READINGS: dict[str, Reading] = {
    "SM clock, MHz": lambda sample: sample.sm_clock_mhz,
    "power, W": lambda sample: sample.power_w,
    "temperature, °C": lambda sample: sample.temperature_c,
}


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each timed unit that has a throughput claim, None where there is none."""
    shown = []
    for judged in judged_parts(view, ThroughputRatio):
        pair = (judged.claim.candidate, judged.claim.baseline)
        timed = [run for run in judged.runs if run.timing and (run.timing.candidate, run.timing.baseline) == pair]
        shown.extend([_part(judged, timed)] if timed else [])
    lead = (
        "Each process builds both arms and times them in turn; it gives one ratio: the baseline's lower quartile "
        "over the candidate's median, because what disturbs a block only makes it slower. A/A is an arm against "
        "itself, from the same blocks: how far a ratio strays when there is nothing to find."
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
                f"Processes; demanded at least {claim.at_least:g}",
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


@drawn_once
def timing(
    processes: Sequence[ProcessTiming], *, demanded: float, interval: Sequence[float], shares_clock: bool
) -> Plot:
    """Plot each process's ratio, A/A ratios and blocks, and the machine's clocks and throttle reasons, in one figure.

    demanded: the least ratio that the claim allows; interval: of the mean ratio; shares_clock: True if blocks report
    when they began, so that the time axis holds gaps too.
    """
    samples = [pair for item in processes for pair in item.samples]
    reasons = sorted({reason for _, sample in samples for reason in sample.throttle_reasons})
    readings = [name for name, read in READINGS.items() if any(read(sample) is not None for _, sample in samples)]
    heights = (1.9, 1.0, 1.2, *(0.9 for _ in readings), *([0.35 + 0.17 * len(reasons)] if readings else []))

    def paint(axes: list[Axes]) -> None:
        _ratios(axes[0], processes, demanded, interval)
        _selves(axes[1], processes)
        _blocks(axes[2], processes)
        for axis, name in zip(axes[3:], readings, strict=False):
            _reading(axis, processes, name)
        if readings:
            _throttled(axes[-1], processes, reasons)
        for axis in axes:
            axis.set_xlim(-0.01 * processes[-1].end, 1.01 * processes[-1].end)
            axis.xaxis.set_major_formatter(plain)
            axis.tick_params(axis="x", labelbottom=axis is axes[-1])
            axis.grid(visible=False, axis="x")  # the lines between the processes lead the eye
            for before, after in itertools.pairwise(processes):
                axis.axvline((before.end + after.start) / 2, color=GRID, lw=0.8)
        whole = "seconds since the first block" if shares_clock else "seconds of timed blocks, end to end"
        axes[-1].set_xlabel(f"{whole}; processes side by side")

    values = ", ".join(f"{item.ratio:.4g}" for item in processes if item.counts) or "none counts"
    left = [f"{item.process} ({item.ratio:.4g})" for item in processes if not item.counts]
    values += f"; left out: {', '.join(left)}" if left else ""
    alt = f"Speed ratio of each process: {values}; demanded {demanded:g}. Over the same time: ms a step by block"
    alt += "".join(f", {name}" for name in readings)
    alt += f"; throttled: {', '.join(map(label, reasons)) or 'never'}." if readings else "."
    return draw(paint, alt=alt, heights=heights)


def _ratios(axis: Axes, processes: Sequence[ProcessTiming], demanded: float, interval: Sequence[float]) -> None:
    if interval:
        low, high = interval[0], interval[1] if math.isfinite(interval[1]) else max(interval[0], demanded)
        axis.axhspan(low, high, fc=(CANDIDATE, 0.18), ec=CANDIDATE, lw=0.6, label="interval of the mean")
    for counts, colour, name in ((True, CANDIDATE, "candidate : baseline"), (False, MUTED, "left out, in no mean")):
        spans = [(item.start, item.end, item.ratio) for item in processes if item.counts is counts]
        if spans:
            _spans(axis, spans, colour, 3.0 if counts else 1.2, name)
    middles = [(item.start + item.end) / 2 for item in processes]
    axis.axhline(demanded, color=LIMIT, lw=1.3, ls="--", label=f"demanded {demanded:g}")
    axis.axhline(1.0, color=MUTED, lw=0.8, label="1: equally fast")
    axis.set_ylabel("speed ratio")
    axis.yaxis.set_major_formatter(plain)
    axis.margins(y=0.2)  # the processes' numbers stand below everything
    for item, middle in zip(processes, middles, strict=True):
        at = axis.get_xaxis_transform()
        axis.text(middle, 0.01, str(item.process), transform=at, ha="center", va="bottom", color=MUTED, gid=ALONG)
    legend(axis)


def _selves(axis: Axes, processes: Sequence[ProcessTiming]) -> None:
    """Plot each arm against itself, on a scale of its own: next to a large ratio the points would look alike."""
    processes = [item for item in processes if item.counts]
    middles = [(item.start + item.end) / 2 for item in processes]
    # the baseline's marks are broad and below, as its lines are
    axis.plot(middles, [item.baseline_aa for item in processes], "v", color=BASELINE, ms=8, label="A/A baseline")
    axis.plot(middles, [item.candidate_aa for item in processes], "^", color=CANDIDATE, ms=4, label="A/A candidate")
    axis.axhline(1.0, color=MUTED, lw=0.8, label="1: as fast as itself")
    axis.margins(y=0.2)
    axis.yaxis.set_major_formatter(plain)
    legend(axis, columns=3)


def _blocks(axis: Axes, processes: Sequence[ProcessTiming]) -> None:
    """Plot every block as long as it ran, at its milliseconds a step."""
    for role, width in ((Role.BASELINE, BROAD), (Role.CANDIDATE, 1.8)):
        blocks = [block for item in processes for block in item.blocks if block.arm == role]
        spans = [(block.start, block.end, block.step_ms) for block in blocks]
        _spans(axis, spans, COLOURS[role], width, f"{role}, ms a step")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(plain)
    legend(axis)


def _reading(axis: Axes, processes: Sequence[ProcessTiming], name: str) -> None:
    moments: list[float] = []
    values: list[float] = []
    for item in processes:
        seen = [(at, value) for at, sample in item.samples if (value := READINGS[name](sample)) is not None]
        places, shown = decimate(np.array([value for _, value in seen], dtype=np.float64), SAMPLES // len(processes))
        moments.extend([*(seen[int(place)][0] for place in places), math.nan])  # no line from one process to the next
        values.extend([*shown.tolist(), math.nan])
    axis.plot(moments, values, color=SERIES[0], lw=1.1, label=name)
    axis.yaxis.set_major_formatter(plain)
    legend(axis)


def _throttled(axis: Axes, processes: Sequence[ProcessTiming], reasons: Sequence[str]) -> None:
    """Plot a lane for each throttle reason, marked while samples gave that reason."""
    for lane, reason in enumerate(reasons):
        least = 0.006 * processes[-1].end  # a single sample must be seen too
        spans = [(start, end, float(lane)) for item in processes for start, end in _stretches(item, reason, least)]
        _spans(axis, spans, LIMIT, 7.0, "_" if lane else "throttled")
        named(axis.lines[-1], "throttled")
    if reasons:
        legend(axis)
    else:
        axis.set_title("throttled: never", loc="left", fontsize=8.5)
    axis.set_yticks(range(len(reasons)), [label(reason, 20) for reason in reasons], color=INK)
    axis.set_ylim(-0.6, max(len(reasons), 1) - 0.4)


def _stretches(item: ProcessTiming, reason: str, least: float) -> list[tuple[float, float]]:
    """Return from when to when the reason was given, sample after sample, drawn for at least `least` seconds."""
    stretches = []
    for given, run in itertools.groupby(item.samples, key=lambda pair: reason in pair[1].throttle_reasons):
        moments = [at for at, _ in run]
        if given:
            stretches.append((moments[0], max(moments[-1], moments[0] + least)))
    return stretches


def _spans(axis: Axes, spans: Sequence[tuple[float, float, float]], colour: str, width: float, name: str) -> None:
    """Plot level strokes (from, to, height) as one line."""
    across = list(itertools.chain(*((start, end, math.nan) for start, end, _ in spans)))
    heights = list(itertools.chain(*((height, height, math.nan) for _, _, height in spans)))
    axis.plot(across, heights, color=colour, lw=width, solid_capstyle="butt", label=name)
