"""Plot a training: loss trajectories, their difference, gradient differences, memory and timings."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.evidence.run_records import JitEvent, TelemetrySample
from harness.numbers import counted
from harness.report.charts.compact import ALONG
from harness.report.charts.svg import (
    BASELINE,
    CANDIDATE,
    CONTROL,
    FLOOR,
    GRID,
    INK,
    LIMIT,
    MUTED,
    REPLICA,
    SERIES,
    Plot,
    decade,
    draw,
    drawn_once,
    legend,
    named,
    plain,
    reads_as,
)
from harness.report.text import label, number, several

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The function below reduces the number of points of a series before the series is drawn. Spikes remain visible.

Doubles = NDArray[np.float64]


def decimate(values: Doubles, points: int = 400) -> tuple[Doubles, Doubles]:
    """Return indices and values of at most max(points, 4) finite values. If there are at most `points` finite values,
    return all of them.

    values: one value for each step. Each bucket of consecutive finite values keeps its minimum and its maximum.
    """
    index = np.flatnonzero(np.isfinite(values))
    finite = values[index]
    if len(finite) <= points:
        return index.astype(np.float64), finite
    # Each bucket keeps two values. The first and the last value of the series are always kept.
    buckets = max(1, (points - 2) // 2)
    size = -(-len(finite) // buckets)
    starts = np.arange(0, len(finite), size)
    kept = {0, len(finite) - 1}
    for start in starts.tolist():
        piece = finite[start : start + size]
        kept.update((start + int(piece.argmin()), start + int(piece.argmax())))
    chosen = np.array(sorted(kept))
    return index[chosen].astype(np.float64), finite[chosen]


MARKS = ("o", "s", "^", "D", "v", "P")
TURNED: Mapping[str, Any] = {"rotation": 90, "rotation_mode": "anchor", "ha": "right", "va": "center"}  # of tick labels


@dataclass(frozen=True)
class Curve:
    """The series of one arm, with one value for each step."""

    name: str
    role: Role
    values: Doubles

    @property
    def label(self) -> str:
        return label(name_of(label(self.name), self.role), 50)


@drawn_once
def trajectories(curves: Sequence[Curve], metric: str = "loss") -> Plot:
    """Plot the loss or another metric by step. Each arm has a line in the style of its role."""

    def paint(axes: list[Axes]) -> None:
        seen: Counter[Role] = Counter()
        for curve in sorted(curves, key=lambda curve: list(Role).index(curve.role)):
            steps, values = decimate(curve.values)
            axes[0].plot(steps, values, label=curve.label, **line_of(curve.role, seen[curve.role]))
            seen[curve.role] += 1
            missing = np.flatnonzero(~np.isfinite(curve.values))
            if len(missing):
                name = label(f"not finite from step {missing[0]}: {curve.name}", 50)
                axes[0].axvline(float(missing[0]), color=LIMIT, lw=1.0, ls=":", label=name)
        axes[0].set(xlabel="step", ylabel=label(metric, 30))
        _ticks(axes[0])
        reads_as(axes[0], "whole")
        legend(axes[0])

    ends = "; ".join(_course(curve) for curve in curves)
    return draw(paint, alt=f"{label(metric, 30).capitalize()} by training step. {ends}.", heights=(2.3,))


@drawn_once
def difference(
    values: Doubles, *, tolerances: Sequence[float], floor: float | None, first: int | None, name: str
) -> Plot:
    """Plot the absolute difference of candidate and baseline in each step (`values`) on a logarithmic axis. A separate
    line at the bottom stands for zero. floor: the noise floor. first: the first differing step."""
    limits = [value for value in (*tolerances, floor) if value is not None and 0 < value < math.inf]
    positive = values[np.isfinite(values) & (values > 0)]
    lowest = min([*limits, float(positive.min())] if len(positive) else limits, default=1.0)
    bottom = math.floor(math.log10(lowest)) - 1.0
    wild = np.flatnonzero(~np.isfinite(values))

    def paint(axes: list[Axes]) -> None:
        axis = axes[0]
        steps, shown = decimate(values)
        heights = [math.log10(value) if value > 0 else bottom for value in shown.tolist()]
        dots: dict[str, Any] = {"marker": "o", "ms": 2.5} if len(steps) <= 120 else {}
        axis.plot(steps, heights, color=CANDIDATE, lw=1.2, label=label(name, 60), zorder=3, **dots)
        for tolerance in tolerances:
            axis.axhline(math.log10(tolerance), color=LIMIT, lw=1.3, ls="--", label=f"tolerance {tolerance:g}")
        if floor is not None:
            height = math.log10(floor) if floor > 0 else bottom
            # Draw the noise floor as a broad band below the curve. A thin line would be covered, because a difference
            # is often equal to the floor.
            axis.axhline(height, color=FLOOR, lw=4.0, label=f"noise floor {number(floor)}")
        if first is not None:
            axis.axvline(first, color=INK, lw=1.0, ls=":", label=f"first differing step {first}")
        if len(wild):
            axis.axvline(float(wild[0]), color=LIMIT, lw=1.0, ls=":", label=f"not finite from step {wild[0]}")
        _decades(axis, bottom, max([*heights, *map(math.log10, tolerances)], default=bottom))
        axis.set(xlabel="step", ylabel="absolute difference")
        legend(axis)

    return draw(paint, alt=_difference_words(values, tolerances, floor, first, name), heights=(2.3,))


@drawn_once
def gradients(points: Sequence[tuple[int | str, str, float]], bounds: Sequence[float], along: str) -> Plot:
    """Plot the largest gradient differences. points: (layer, kind of tensor, largest difference at the judged steps).

    A name in the place of a layer's number gets a place left of the first layer. along: the title of the horizontal
    axis. If there are more kinds of tensor than styles, the kinds that differ least share the last style.
    """
    names = list(dict.fromkeys(place for place, _, _ in points if isinstance(place, str)))
    left = min((place for place, _, _ in points if isinstance(place, int)), default=len(names)) - len(names)
    texts = {left + place: label(name, 32) for place, name in enumerate(names)}
    placed = _of_few_kinds(
        [(at if isinstance(at, int) else left + names.index(at), kind, value) for at, kind, value in points]
    )
    right = max(place for place, _, _ in placed)
    kinds = list(dict.fromkeys(kind for _, kind, _ in placed))
    positive = [value for _, _, value in placed if 0 < value < math.inf]
    bottom = math.floor(math.log10(min([*positive, *bounds], default=1.0))) - 1.0
    beyond = math.ceil(math.log10(max([*positive, *bounds], default=1.0)) + 1e-9) + 1.0
    wild = any(not math.isfinite(value) for _, _, value in placed)
    # Turn names that would cover one another if they were horizontal. They need room below the axis, in inches.
    room = 0.07 * max(map(len, texts.values())) if sum(map(len, texts.values())) > 60 else 0.0

    def paint(axes: list[Axes]) -> None:
        axis, top = axes[0], bottom
        for place, kind in enumerate(kinds):
            mine = [(layer, value) for layer, name, value in placed if name == kind]
            heights = [_height(value, bottom, beyond) for _, value in mine]
            top = max([top, *heights])
            # Draw the kinds next to each other. Otherwise points at 0 would cover one another.
            shift = (place - (len(kinds) - 1) / 2) * 0.1
            layers = [layer + shift for layer, _ in mine]
            axis.plot(layers, heights, color=SERIES[place], marker=MARKS[place], ms=3.5, ls="", label=label(kind, 30))
        for bound in bounds:
            axis.axhline(math.log10(bound), color=LIMIT, lw=1.3, ls="--", label=f"bound {bound:g}")
            top = max(top, math.log10(bound))
        _decades(axis, bottom, top, beyond=beyond if wild else None)
        axis.set(xlabel=along, ylabel="largest difference", xlim=(left - 0.5, right + 0.5))
        near, places = (right - left) / 16, range(left, right + 1)
        # Leave out the numbers of layers that are too near to a name.
        numbers = (int(at) for at in axis.get_xticks() if at in places and all(at - name > near for name in texts))
        ticks = {**texts, **{at: str(at) for at in numbers}}
        axis.set_xticks(list(ticks), list(ticks.values()), **(TURNED if room else {}))
        reads_as(axis, "named", zero=bottom)
        legend(axis)

    worst = max(value for _, _, value in placed)
    said = number(worst) if math.isfinite(worst) else "not finite"
    words = f"Largest gradient difference by layer and tensor; the worst is {said}."
    return draw(paint, alt=words, heights=(2.3 + room,))


def _height(value: float, bottom: float, beyond: float) -> float:
    """Return the height of a difference on an axis in powers of ten.

    Zero is at the bottom, and values that are not finite are at the top.
    """
    return beyond if not math.isfinite(value) else math.log10(value) if value > 0 else bottom


def _of_few_kinds(points: Sequence[tuple[int, str, float]]) -> list[tuple[int, str, float]]:
    """Return the points with at most as many kinds as there are styles. If there are more, the kinds that differ least
    get one common name."""
    worst: dict[str, float] = {}
    for _, kind, value in points:
        worst[kind] = max(worst.get(kind, 0.0), value)
    if len(worst) <= len(SERIES):
        return list(points)
    least = sorted(worst, key=lambda kind: -worst[kind])[len(SERIES) - 1 :]
    together = several(len(least), "other kind")
    named = [point for point in points if point[1] not in least]
    return [*named, *((layer, together, value) for layer, kind, value in points if kind in least)]


@drawn_once
def memory(arm: str, levels: Mapping[str, Doubles], *, per: str) -> Plot:
    """Plot by how much the candidate's memory grew since the first sample, in MiB. levels: for each kind of memory
    (allocated, reserved), the bytes in each sample. per: the name of the horizontal axis."""

    def paint(axes: list[Axes]) -> None:
        for name, values in levels.items():
            at, shown = decimate((values - values[0]) / 2**20)
            style = {**line_of(Role.CANDIDATE), "ls": "-" if name == "allocated" else ":"}
            axes[0].plot(at, shown, label=f"{name_of(label(arm, 30), Role.CANDIDATE)}, {name}", **style)
        axes[0].set(xlabel=per, ylabel="growth, MiB")
        _ticks(axes[0])
        reads_as(axes[0], "whole")
        legend(axes[0])

    grown = ", ".join(f"{name} {number((values[-1] - values[0]) / 2**20)} MiB" for name, values in levels.items())
    text = f"Growth of device memory by {per} since the first sample. {label(arm)}: {grown}."
    return draw(paint, alt=text, heights=(1.8,))


def _whole_numbers(axis: Axes) -> None:
    """Set axis ticks only at whole numbers of steps or layers."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _ticks(axis: Axes) -> None:
    _whole_numbers(axis)
    axis.xaxis.set_major_formatter(plain)
    axis.yaxis.set_major_formatter(plain)


def _decades(axis: Axes, bottom: float, top: float, beyond: float | None = None) -> None:
    """Label the vertical axis in powers of ten.

    The height `bottom` gets a line for zero, and the height `beyond` gets a line for values that are not finite.
    """
    highest = math.ceil((top if beyond is None else beyond - 1) + 1e-9)
    stride = max(1, round((highest - bottom) / 7))
    ticks = [*range(highest, int(bottom), -stride)]
    named = (
        {bottom: "0"}
        | {tick: decade(tick) for tick in reversed(ticks)}
        | ({} if beyond is None else {beyond: "not finite"})
    )
    axis.set_yticks(list(named), list(named.values()))
    axis.set_ylim(bottom - 0.35, (highest if beyond is None else beyond) + 0.2)
    _whole_numbers(axis)
    axis.axhspan(bottom - 0.35, bottom + 0.25, color=GRID, lw=0, zorder=0)
    axis.xaxis.set_major_formatter(plain)
    axis.tick_params(axis="y", colors=MUTED, labelcolor=INK)
    reads_as(axis, "whole", zero=bottom)


def _course(curve: Curve) -> str:
    if not len(curve.values):
        return f"{curve.label}: no steps"
    first, last = number(float(curve.values[0])), number(float(curve.values[-1]))
    return f"{curve.label}: {first} at step 0, {last} at step {len(curve.values) - 1}"


def _difference_words(
    values: Doubles, tolerances: Sequence[float], floor: float | None, first: int | None, name: str
) -> str:
    finite = values[np.isfinite(values)]
    largest, wild = number(float(finite.max())) if len(finite) else "not finite", len(values) - len(finite)
    text = f"Absolute difference by step, {label(name, 80)}: largest {largest}"
    text += f", not finite at {several(wild, 'step')}" if wild and len(finite) else ""
    text += "".join(f", tolerance {tolerance:g}" for tolerance in tolerances)
    text += f", noise floor {number(floor)}" if floor is not None else ""
    return text + (f"; first differing step {first}." if first is not None else "; no step differs.")


# Width of a baseline's line in points. If a thinner line is drawn on top, the baseline stays visible on both sides.
BROAD = 5.0


class Role(StrEnum):
    """The role of an arm in the claim that a plot belongs to."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    CONTROL = "control"  # an arm that must differ from the baseline, or that does not train
    REPLICA = "again"  # another execution of the baseline
    OTHER = ""  # an arm that no claim compares


COLOURS = {
    Role.BASELINE: BASELINE,
    Role.CANDIDATE: CANDIDATE,
    Role.CONTROL: CONTROL,
    Role.REPLICA: REPLICA,
    Role.OTHER: SERIES[5],
}
_LINES: Mapping[Role, Mapping[str, Any]] = {
    Role.BASELINE: {"lw": BROAD, "zorder": 2.0},
    Role.CANDIDATE: {"lw": 1.4, "zorder": 2.3},
    Role.CONTROL: {"lw": 1.4, "ls": "--", "zorder": 2.1},
    Role.REPLICA: {"lw": 1.4, "ls": ":", "zorder": 2.2},
    Role.OTHER: {"lw": 1.4, "zorder": 2.1},
}


def line_of(role: Role, place: int = 0) -> dict[str, Any]:
    """Return the style of a line. place: the number of earlier lines of the same role in the plot. Each of these lines
    has dashes of its own: after the first line, `place` dots follow each dash.

    The baseline's broad line is drawn below all other lines. If another arm has equal values, both lines are visible.
    """
    dashes = {"ls": (0, (4, 1.5, *(1, 1.5) * place))} if place else {}
    return {"color": COLOURS[role], **_LINES[role], **dashes}


def name_of(arm: str, role: Role) -> str:
    """Return the name of an arm with its role, for a legend."""
    return f"{arm} ({role})" if role else arm


# Plots for single claim kinds: kernels over time, seeds, and blocks of a long replay.


@drawn_once
def timeline(events: Sequence[JitEvent], phases: Mapping[str, float], handles: Mapping[str, float]) -> Plot:
    """Plot when kernels were compiled, found in the disk cache or loaded, and when library handles were created. The
    phases prewarm, upload and train are bands."""
    rows = ["compile", "disk_hit", "load", *(["handle"] if handles else [])]
    ends = [float(event.seconds) for event in events] + [float(value) for value in handles.values()]
    starts = sorted(((float(at), name) for name, at in phases.items()))
    end = max([*ends, *(at for at, _ in starts), 1e-3]) * 1.03

    def paint(axes: list[Axes]) -> None:
        axis = axes[0]
        for place, (at, name) in enumerate(starts):
            until = starts[place + 1][0] if place + 1 < len(starts) else end
            axis.axvspan(at, until, color=GRID, alpha=(0.9, 0.3)[place % 2], lw=0, zorder=0)
            # Write the names at different heights, because a phase can be shorter on the axis than its name.
            axis.text(at, len(rows) - 0.45 + 0.5 * place, label(name, 16), fontsize=8.5, color=INK, gid=ALONG)
        for place, row in enumerate(rows):
            seen = [float(event.seconds) for event in events if event.event == row]
            moments = list(handles.values()) if row == "handle" else seen
            strokes = [(at, at, math.nan) for at in moments], [(place - 0.25, place + 0.25, math.nan)] * len(moments)
            look: dict[str, Any] = {"lw": 1.3, "color": SERIES[place], "label": row.replace("_", " ")}
            if moments:
                axis.plot(*(list(itertools.chain(*values)) for values in strokes), **look)
        axis.set_yticks(range(len(rows)), [row.replace("_", " ") for row in rows])
        axis.set(
            xlabel="seconds since the worker started",
            xlim=(0, end),
            ylim=(-0.6, len(rows) - 0.6 + 0.5 * max(len(starts), 1)),
        )
        axis.xaxis.set_major_formatter(plain)
        reads_as(axis, "events")
        if events or handles:
            legend(axis, columns=4)

    bands = ", ".join(f"{label(name)} from {number(at)} s" for at, name in starts)
    return draw(paint, alt=f"{len(events)} JIT events over time; phases: {bands or 'none'}.", heights=(1.9,))


@drawn_once
def seed_differences(
    seeds: Sequence[int],
    worse: Sequence[float],
    margins: Sequence[float],
    *,
    mean: float,
    interval: Sequence[float],
    metric: str,
) -> Plot:
    """Plot for each seed by how much the candidate is worse, with the allowed margin. Also plot the trimmed mean over
    the seeds, with its interval."""

    def paint(axes: list[Axes]) -> None:
        axis, places = axes[0], range(len(seeds))
        axis.axhspan(
            interval[0], interval[1], fc=(CANDIDATE, 0.18), ec=CANDIDATE, lw=0.6, label="interval of the trimmed mean"
        )
        axis.axhline(mean, color=CANDIDATE, lw=1.3, label=f"trimmed mean {number(mean)}")
        axis.axhline(0.0, color=MUTED, lw=0.8, label="0: no difference")
        axis.plot(places, worse, "o", color=CANDIDATE, ms=4.0, label="a seed")
        axis.plot(places, margins, "_", color=LIMIT, ms=14.0, mew=1.6, label="margin")
        axis.set_xticks(list(places), [str(seed) for seed in seeds])
        axis.yaxis.set_major_formatter(plain)
        axis.set(xlabel="seed", ylabel="worse by")
        reads_as(axis, "named")
        legend(axis, columns=3)

    values = ", ".join(f"{seed}: {number(value)}" for seed, value in zip(seeds, worse, strict=True))
    low, high = map(number, interval)
    text = f"By how much {label(metric)} of the candidate is worse, by seed. {values}. Trimmed mean {number(mean)}"
    return draw(paint, alt=f"{text}, {low} to {high}; largest margin {number(max(margins))}.", heights=(2.4,))


@drawn_once
def long_replay(steps: Doubles, seconds: Doubles, yardstick: Doubles, memory: Mapping[str, Doubles]) -> Plot:
    """Plot the candidate's milliseconds per step for each block, and the time of a fixed piece of work (yardstick),
    scaled so that the medians of both curves are equal.

    Below, plot the growth of memory in MiB since the first block.
    """
    scaled = yardstick / np.nanmedian(yardstick) * np.nanmedian(seconds)

    def paint(axes: list[Axes]) -> None:
        looks = {
            "a step (candidate)": line_of(Role.CANDIDATE),
            "yardstick": {"color": SERIES[0], "lw": 1.2, "ls": "--"},
        }
        for (name, look), values in zip(looks.items(), (seconds, scaled), strict=True):
            at, shown = decimate(1e3 * values)
            axes[0].plot(steps[at.astype(int)], shown, label=name, **look)
        axes[0].set(ylabel="ms")
        axes[0].set_ylim(bottom=0)
        for name, levels in memory.items():
            at, shown = decimate((levels - levels[0]) / 2**20)
            look = {**line_of(Role.CANDIDATE), "ls": "-" if name == "allocated" else ":"}
            axes[1].plot(steps[at.astype(int)], shown, label=f"{name} (candidate)", **look)
            axes[1].set(ylabel="growth, MiB")
        axes[-1].set(xlabel="step")
        for axis in axes:
            axis.xaxis.set_major_formatter(plain)
            axis.yaxis.set_major_formatter(plain)
            reads_as(axis, "whole")
            legend(axis)

    text = (
        f"Milliseconds a step over {counted(len(steps), 'block')}: {number(float(1e3 * seconds[0]))} in the first, "
        f"{number(float(1e3 * seconds[-1]))} in the last."
    )
    grown = [f"{name} {number(float(levels[-1] - levels[0]) / 2**20)} MiB" for name, levels in memory.items()]
    alt = text + (f" Growth of memory: {', '.join(grown)}." if grown else "")
    return draw(paint, alt=alt, heights=(1.8, 1.4) if memory else (1.8,))


# The code below plots a timing: the ratio and the blocks of each process, and the machine's clocks and throttling.

SAMPLES = 160  # largest number of samples drawn for one reading (such as the clock), for all processes together
Reading = Callable[[TelemetrySample], float | None]
READINGS: dict[str, Reading] = {
    "SM clock, MHz": lambda sample: sample.sm_clock_mhz,
    "power, W": lambda sample: sample.power_w,
    "temperature, °C": lambda sample: sample.temperature_c,
}


class TimedBlock(NamedTuple):
    """A timed block: start and end in seconds on the axis, and milliseconds per step."""

    arm: str  # the role of the arm: candidate or baseline
    start: float
    end: float
    step_ms: float


@dataclass(frozen=True)
class ProcessTiming:
    """One process of a timing that compares two arms. All times are seconds on the axis. candidate_aa, baseline_aa: the
    self ratio of each arm."""

    process: int
    # The ratio that the judge used. If the judge left out this process, the baseline's undisturbed step time divided by
    # the candidate's undisturbed step time.
    ratio: float
    disturbed: int  # number of rounds in which other work may have slowed a block
    candidate_aa: float
    baseline_aa: float
    blocks: list[TimedBlock]
    samples: list[tuple[float, TelemetrySample]]
    clocked: bool  # True: the process recorded when its blocks began
    counts: bool = True  # True: the judge's mean includes the ratio of this process

    @property
    def start(self) -> float:
        return self.blocks[0].start

    @property
    def end(self) -> float:
        return max([*(block.end for block in self.blocks), *(at for at, _ in self.samples)])


@drawn_once
def timing(
    processes: Sequence[ProcessTiming], *, demanded: float, interval: Sequence[float], shares_clock: bool
) -> Plot:
    """Plot a timing in one figure. For each process it shows the ratio, the A/A ratios (each arm against itself) and
    the blocks. For the machine it shows clock, power, temperature and throttle reasons.

    demanded: the smallest ratio that the claim allows; interval: the interval of the trimmed mean ratio; shares_clock:
    True if the start of each block was recorded, so that the time axis also shows the time between blocks.
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
            axis.grid(visible=False, axis="x")  # the lines between processes replace the grid
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
        axis.axhspan(low, high, fc=(CANDIDATE, 0.18), ec=CANDIDATE, lw=0.6, label="interval of the trimmed mean")
    for counts, colour, name in ((True, CANDIDATE, "candidate : baseline"), (False, MUTED, "left out of the mean")):
        spans = [(item.start, item.end, item.ratio) for item in processes if item.counts is counts]
        if spans:
            _spans(axis, spans, colour, 3.0 if counts else 1.2, name)
    middles = [(item.start + item.end) / 2 for item in processes]
    axis.axhline(demanded, color=LIMIT, lw=1.3, ls="--", label=f"demanded {demanded:g}")
    axis.axhline(1.0, color=MUTED, lw=0.8, label="1: equally fast")
    axis.set_ylabel("speed ratio")
    axis.yaxis.set_major_formatter(plain)
    axis.margins(y=0.2)  # room at the bottom for the numbers of the processes
    for item, middle in zip(processes, middles, strict=True):
        at = axis.get_xaxis_transform()
        axis.text(middle, 0.01, str(item.process), transform=at, ha="center", va="bottom", color=MUTED, gid=ALONG)
    legend(axis)


def _selves(axis: Axes, processes: Sequence[ProcessTiming]) -> None:
    """Plot the A/A ratios of each process (each arm against itself) in separate axes. These ratios are near 1, and
    could not be distinguished on the axes of candidate and baseline, where the ratio can be large."""
    processes = [item for item in processes if item.counts]
    middles = [(item.start + item.end) / 2 for item in processes]
    # Draw the baseline's marks larger than the candidate's marks, and below them.
    axis.plot(middles, [item.baseline_aa for item in processes], "v", color=BASELINE, ms=8, label="A/A baseline")
    axis.plot(middles, [item.candidate_aa for item in processes], "^", color=CANDIDATE, ms=4, label="A/A candidate")
    axis.axhline(1.0, color=MUTED, lw=0.8, label="1: as fast as itself")
    axis.margins(y=0.2)
    axis.yaxis.set_major_formatter(plain)
    legend(axis, columns=3)


def _blocks(axis: Axes, processes: Sequence[ProcessTiming]) -> None:
    """Plot every block as a line from its start to its end. The height of the line is the block's milliseconds per
    step."""
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
        # end the curve of each process with NaN, so that no line connects two processes
        moments.extend([*(seen[int(place)][0] for place in places), math.nan])
        values.extend([*shown.tolist(), math.nan])
    axis.plot(moments, values, color=SERIES[0], lw=1.1, label=name)
    axis.yaxis.set_major_formatter(plain)
    legend(axis)


def _throttled(axis: Axes, processes: Sequence[ProcessTiming], reasons: Sequence[str]) -> None:
    """Plot a row for each throttle reason. Lines in the row mark the times in which samples of the GPU had this
    reason."""
    for lane, reason in enumerate(reasons):
        least = 0.006 * processes[-1].end  # shortest length of a line, so that a single sample stays visible
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
    """Return start and end of each series of consecutive samples with this throttle reason.

    A series that lasts less than `least` seconds is drawn with a length of `least`.
    """
    stretches = []
    for given, run in itertools.groupby(item.samples, key=lambda pair: reason in pair[1].throttle_reasons):
        moments = [at for at, _ in run]
        if given:
            stretches.append((moments[0], max(moments[-1], moments[0] + least)))
    return stretches


def _spans(axis: Axes, spans: Sequence[tuple[float, float, float]], colour: str, width: float, name: str) -> None:
    """Plot horizontal strokes (start, end, height) as one line with gaps."""
    across = list(itertools.chain(*((start, end, math.nan) for start, end, _ in spans)))
    heights = list(itertools.chain(*((height, height, math.nan) for _, _, height in spans)))
    axis.plot(across, heights, color=colour, lw=width, solid_capstyle="butt", label=name)


@drawn_once
def bars(rows: Sequence[str], values: Mapping[str, Sequence[float]], *, alt: str) -> Plot:
    """Plot horizontal bars. values: name -> lengths of its bars, one for each row. Bars of the first name are filled,
    and other bars are outlines. The lengths of the last name are also written as numbers at the ends of its bars."""

    def paint(axes: list[Axes]) -> None:
        axis, places, longest = axes[0], range(len(rows)), list(values.values())[-1]
        for number_of, (name, lengths) in enumerate(values.items()):
            look: dict[str, Any] = {"fc": "none"} if number_of else {"fc": SERIES[0]}
            drawn = axis.barh(places, lengths, ec=SERIES[0], lw=1.0, label=name, **look)
            for mark in drawn:
                named(mark, name)
        axis.bar_label(drawn, [f"{length:,.1f}" for length in longest], padding=4, color=INK)
        axis.set_yticks(places, rows)
        axis.set(xticks=[], xlim=(0, 1.15 * max(longest)))
        axis.invert_yaxis()
        axis.grid(visible=False)
        legend(axis, columns=1)

    return draw(paint, alt=alt, heights=(0.2 * len(rows) + 0.4,))


# The code below plots a figure over several runs.


class MachineRuns(NamedTuple):
    """Runs on one machine, for a plot of a figure. places: the runs' positions on the horizontal axis.

    ends: for each run, the lower and the upper end of the figure's interval. NaN: the figure has no interval.
    """

    name: str
    joined: bool  # True: a line connects the runs
    places: Sequence[int]
    values: Sequence[float]
    ends: Sequence[Sequence[float]]


def over_runs(
    machines: Sequence[MachineRuns], ticks: Mapping[int, str], demand: tuple[float, str] | None, unit: str, alt: str
) -> Plot:
    """Plot a figure over several runs, with its intervals. Each machine has one color. demand: a number, drawn as a
    line, and the label of the line."""

    def paint(axes: list[Axes]) -> None:
        for place, one in enumerate(machines):
            colour, mark = SERIES[place % len(SERIES)], MARKS[place % len(MARKS)]
            for at, (low, high) in zip(one.places, one.ends, strict=True):
                if not math.isnan(low):
                    axes[0].plot([at, at], [low, high], color=colour, lw=5, alpha=0.3, solid_capstyle="butt")
            look: dict[str, Any] = {"color": colour, "marker": mark, "ls": "-" if one.joined else ""}
            axes[0].plot(one.places, one.values, lw=1.2, ms=4, label=one.name, **look)
        if demand is not None:
            axes[0].axhline(demand[0], color=LIMIT, lw=1.3, ls="--", label=demand[1])
        axes[0].set_xticks(list(ticks), list(ticks.values()))
        axes[0].set(xlabel="trainer's commit, in the order of the runs", ylabel=unit)
        axes[0].tick_params(axis="x", labelcolor=INK, labelsize=7.5)
        axes[0].yaxis.set_major_formatter(plain)
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    return draw(paint, alt=alt, heights=(1.7,))
