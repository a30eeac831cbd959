"""The plots of the machine: step times and ratios by process, clocks and throttling, the JIT timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.evidence.model import JitEvent, Telemetry
from harness.report.plots import MARKS
from harness.report.svg import GRID, INK, LIMIT, MUTED, SERIES, Plot, draw, plain
from harness.report.text import label, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class ProcessTiming:
    """One process of a timing comparison. Step times in milliseconds, in the order the blocks ran."""

    process: int
    ratio: float
    candidate_aa: float
    baseline_aa: float
    blocks: list[tuple[str, float]]  # (candidate or baseline, milliseconds a step)


def ratios(processes: Sequence[ProcessTiming], *, demanded: float, interval: tuple[float, float] | None) -> Plot:
    """Each process's ratio and the A/A ratios of its arms, with the demanded bound and the interval of the mean."""

    def paint(axes: list[Axes]) -> None:
        axis = axes[0]
        at = [process.process for process in processes]
        if interval is not None:
            low, high = interval[0], interval[1] if math.isfinite(interval[1]) else max(interval[0], demanded)
            axis.axhspan(low, high, color=SERIES[0], alpha=0.18, lw=0, label="interval of the mean")
        axis.plot(at, [item.ratio for item in processes], "o", color=SERIES[0], ms=6, label="candidate : baseline")
        axis.plot(at, [item.candidate_aa for item in processes], "^", color=SERIES[2], ms=4, label="A/A candidate")
        axis.plot(at, [item.baseline_aa for item in processes], "v", color=SERIES[1], ms=4, label="A/A baseline")
        axis.axhline(demanded, color=LIMIT, lw=1.3, ls="--", label=f"demanded {demanded:g}")
        axis.axhline(1.0, color=MUTED, lw=0.8)
        axis.set(xlabel="process", ylabel="speed ratio", xticks=at)
        axis.yaxis.set_major_formatter(plain)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    values = ", ".join(f"{item.ratio:.4g}" for item in processes)
    return draw(paint, alt=f"Speed ratio of each process: {values}; demanded {demanded:g}.", heights=(2.7,))


def block_times(processes: Sequence[ProcessTiming]) -> Plot:
    """Milliseconds a step of every timed block, in the order they ran, process after process."""

    def paint(axes: list[Axes]) -> None:
        axis, start = axes[0], 0
        for item in processes:
            for place, arm in enumerate(("candidate", "baseline")):
                blocks = [(start + at, value) for at, (name, value) in enumerate(item.blocks) if name == arm]
                name = arm if start == 0 else None
                at, values = [place for place, _ in blocks], [value for _, value in blocks]
                axis.plot(at, values, color=SERIES[place], marker=MARKS[place], ms=2.5, ls="", label=name)
            start += len(item.blocks)
            axis.axvline(start - 0.5, color=GRID, lw=0.8)
        axis.set(xlabel="timed block, process after process", ylabel="ms a step")
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_formatter(plain)
        axis.yaxis.set_major_formatter(plain)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    count = sum(len(item.blocks) for item in processes)
    return draw(
        paint, alt=f"Milliseconds a step in each of {count} timed blocks, candidate and baseline.", heights=(2.0,)
    )


def telemetry(samples: Mapping[int, Telemetry]) -> Plot:
    """SM clock, power and temperature over the time of each process, on one time axis; throttled moments marked."""
    quantities = (
        (
            "SM clock, MHz",
            [(key, item.seconds, item.sm_clock_mhz) for key, one in samples.items() for item in one.samples],
        ),
        ("power, W", [(key, item.seconds, item.power_w) for key, one in samples.items() for item in one.samples]),
        (
            "temperature, °C",
            [(key, item.seconds, item.temperature_c) for key, one in samples.items() for item in one.samples],
        ),
    )
    shown = [(name, points) for name, points in quantities if any(value is not None for _, _, value in points)]
    throttled = [item.seconds for one in samples.values() for item in one.samples if item.throttle_reasons]

    def paint(axes: list[Axes]) -> None:
        for axis, (name, points) in zip(axes, shown, strict=True):
            for place, key in enumerate(samples):
                mine = [(at, value) for owner, at, value in points if owner == key and value is not None]
                colour = SERIES[place % len(SERIES)]
                axis.plot([at for at, _ in mine], [value for _, value in mine], color=colour, lw=0.9)
            for moment in throttled[:200]:
                axis.axvline(moment, color=LIMIT, lw=0.6, alpha=0.5)
            axis.set_title(name, loc="left", fontsize=8.5)
            axis.yaxis.set_major_formatter(plain)
            axis.xaxis.set_major_formatter(plain)
        axes[-1].set_xlabel("seconds since the process started")

    names = ", ".join(name for name, _ in shown)
    alt = f"{names} over time, one line a process; {len(throttled)} throttled samples."
    return draw(paint, alt=alt, heights=tuple(1.3 for _ in shown))


def timeline(events: Sequence[JitEvent], phases: Mapping[str, float], handles: Mapping[str, float]) -> Plot:
    """Compiles, disk-cache hits and loads over time, with the phases prewarm, upload and train as bands."""
    rows = ["compile", "disk_hit", "load", *(["handle"] if handles else [])]
    ends = [float(event.seconds) for event in events] + [float(value) for value in handles.values()]
    starts = sorted(((float(at), name) for name, at in phases.items()))
    end = max([*ends, *(at for at, _ in starts), 1e-3]) * 1.03

    def paint(axes: list[Axes]) -> None:
        axis = axes[0]
        for place, (at, name) in enumerate(starts):
            until = starts[place + 1][0] if place + 1 < len(starts) else end
            axis.axvspan(at, until, color=GRID, alpha=(0.9, 0.3)[place % 2], lw=0, zorder=0)
            axis.text(at, len(rows) - 0.45, label(name, 16), fontsize=8.5, color=INK)
        for place, row in enumerate(rows):
            seen = [float(event.seconds) for event in events if event.event == row]
            moments = list(handles.values()) if row == "handle" else seen
            axis.plot(moments, [place] * len(moments), ls="", marker="|", ms=9, mew=1.3, color=SERIES[place])
        axis.set_yticks(range(len(rows)), [row.replace("_", " ") for row in rows])
        axis.set(xlabel="seconds since the worker started", xlim=(0, end), ylim=(-0.6, len(rows) - 0.1))
        axis.xaxis.set_major_formatter(plain)

    bands = ", ".join(f"{label(name)} from {number(at)} s" for at, name in starts)
    return draw(paint, alt=f"{len(events)} JIT events over time; phases: {bands or 'none'}.", heights=(1.9,))
