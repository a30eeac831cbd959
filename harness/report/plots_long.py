"""The plot of a long replay: step time and memory over its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from harness.report.decimate import Doubles, decimate
from harness.report.svg import SERIES, Plot, draw, drawn_once, plain
from harness.report.text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@drawn_once
def long_replay(steps: Doubles, seconds: Doubles, yardstick: Doubles, memory: Mapping[str, Doubles]) -> Plot:
    """Milliseconds a step [blocks] and the yardstick relative to its median; below, growth of memory, MiB."""
    scaled = yardstick / np.nanmedian(yardstick) * np.nanmedian(seconds)

    def paint(axes: list[Axes]) -> None:
        for place, (name, values) in enumerate((("a step", seconds), ("yardstick", scaled))):
            at, shown = decimate(1e3 * values)
            axes[0].plot(steps[at.astype(int)], shown, color=SERIES[place], lw=1.2, ls=("-", "--")[place], label=name)
        axes[0].set(ylabel="ms")
        axes[0].set_ylim(bottom=0)
        for place, (name, levels) in enumerate(memory.items()):
            at, shown = decimate((levels - levels[0]) / 2**20)
            axes[1].plot(steps[at.astype(int)], shown, color=SERIES[place], ls=("-", "--")[place], lw=1.2, label=name)
            axes[1].set(ylabel="growth, MiB")
        axes[-1].set(xlabel="step")
        for axis in axes:
            axis.xaxis.set_major_formatter(plain)
            axis.yaxis.set_major_formatter(plain)
            axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    text = (
        f"Milliseconds a step over {len(steps)} blocks: {number(float(1e3 * seconds[0]))} in the first, "
        f"{number(float(1e3 * seconds[-1]))} in the last."
    )
    grown = [f"{name} {number(float(levels[-1] - levels[0]) / 2**20)} MiB" for name, levels in memory.items()]
    alt = text + (f" Growth of memory: {', '.join(grown)}." if grown else "")
    return draw(paint, alt=alt, heights=(1.8, 1.4) if memory else (1.8,))
