"""The JIT timeline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.evidence.run_records import JitEvent
from harness.report.compact import ALONG
from harness.report.svg import GRID, INK, SERIES, Plot, draw, drawn_once, legend, plain, reads_as
from harness.report.text import label, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@drawn_once
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
            # at heights of their own: a phase may be shorter than its name
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
