"""The plot of a long replay: step time and memory over its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from harness.numbers import counted
from harness.report.decimate import Doubles, decimate
from harness.report.plots_roles import Role, line_of
from harness.report.svg import SERIES, Plot, draw, drawn_once, legend, plain, reads_as
from harness.report.text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@drawn_once
def long_replay(steps: Doubles, seconds: Doubles, yardstick: Doubles, memory: Mapping[str, Doubles]) -> Plot:
    """Milliseconds a step [blocks] and the yardstick relative to its median; below, growth of memory, MiB."""
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
