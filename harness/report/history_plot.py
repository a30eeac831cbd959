"""A judged figure over runs, as a plot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.numbers import counted
from harness.report.history_runs import UNKNOWN
from harness.report.svg import INK, LIMIT, SERIES, Plot, draw, plain
from harness.report.text import label, words
from harness.report.trainer import NOT_RECORDED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

MARKS = ("o", "s", "^", "D", "v", "P")
NEAR = 4.0  # a demand that many times farther than the figures themselves would press them into one line
TICKS = 7


def plot(one: DataFrame) -> Plot:
    """The figure over its runs with its intervals and its demand; unknown machines are points without a line.

    one: rows of `history` of one trainer, unit and figure.
    """
    order = {run: place for place, run in enumerate(dict.fromkeys(one["run"]))}
    last = one.iloc[-1]

    def paint(axes: list[Axes]) -> None:
        for place, (known, mine) in enumerate(one.groupby("machine", sort=True)):
            at = [order[run] for run in mine["run"]]
            lines = "" if UNKNOWN in str(known) else "-"
            style = {"color": SERIES[place % len(SERIES)], "marker": MARKS[place % len(MARKS)], "ls": lines}
            ends = [(x, *pair) for x, pair in zip(at, mine[["low", "high"]].to_numpy().tolist(), strict=True)]
            for x, low, high in (each for each in ends if not math.isnan(each[1])):
                axes[0].plot([x, x], [low, high], color=style["color"], lw=5, alpha=0.3, solid_capstyle="butt")
            axes[0].plot(at, mine["value"].to_list(), lw=1.2, ms=4, label=label(known, 60), **style)  # type: ignore[arg-type]
        if _near(one):
            axes[0].axhline(float(last["bound"]), color=LIMIT, lw=1.3, ls="--", label=label(last["demand"]))
        ticks = list(order.items())[:: -(-len(order) // TICKS)]
        axes[0].set_xticks([at for _, at in ticks], [_tick(one, run) for run, _ in ticks])
        axes[0].set(xlabel="trainer's commit, in the order of the runs", ylabel=label(last["unit"] or "value", 30))
        axes[0].tick_params(axis="x", labelcolor=INK, labelsize=7.5)
        axes[0].yaxis.set_major_formatter(plain)
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    values = ", ".join(f"{value:.4g}" for value in one["value"].tail(6))
    return draw(
        paint, alt=f"{words(last['figure'])} over {counted(len(order), 'run')}; the latest: {values}.", heights=(1.7,)
    )


def _near(one: DataFrame) -> bool:
    """Whether the demand can be drawn on the figures' own scale."""
    bound, values = float(one.iloc[-1]["bound"]), [abs(float(value)) for value in one["value"]]
    return not math.isnan(bound) and max(values) / NEAR <= abs(bound) <= max(values) * NEAR


def _tick(one: DataFrame, run: str) -> str:
    """The commit's first digits; where it was not recorded, the day of the run."""
    first = one[one["run"] == run].iloc[0]
    commit = str(first["commit"])
    return label(str(first["started_at"])[5:10] if commit == NOT_RECORDED else commit[:7])
