"""The plot of a comparison over seeds: each seed's difference beside the margin, and the interval of their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.report.svg import CANDIDATE, LIMIT, MUTED, Plot, draw, drawn_once, legend, plain, reads_as
from harness.report.text import label, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@drawn_once
def differences(
    seeds: Sequence[int],
    worse: Sequence[float],
    margins: Sequence[float],
    *,
    mean: float,
    interval: tuple[float, float],
    metric: str,
) -> Plot:
    """By how much the candidate is worse with each seed, the margin there, and the mean with its interval."""

    def paint(axes: list[Axes]) -> None:
        axis, places = axes[0], range(len(seeds))
        axis.axhspan(*interval, fc=(CANDIDATE, 0.18), ec=CANDIDATE, lw=0.6, label="interval of the mean")
        axis.axhline(mean, color=CANDIDATE, lw=1.3, label=f"mean {number(mean)}")
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
    text = f"By how much {label(metric)} of the candidate is worse, by seed. {values}. Mean {number(mean)}"
    return draw(paint, alt=f"{text}, {low} to {high}; largest margin {number(max(margins))}.", heights=(2.4,))
