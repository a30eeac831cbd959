"""The plots of training: loss trajectories, their difference, gradient differences, memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.report.decimate import Doubles, decimate
from harness.report.svg import GRID, INK, LIMIT, MUTED, SERIES, Plot, decade, draw, drawn_once, plain
from harness.report.text import label, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Curve:
    """One arm's loss [T], named by arm and replica."""

    name: str
    loss: Doubles


@drawn_once
def trajectories(curves: Sequence[Curve]) -> Plot:
    """Loss by step, one line an arm; the first (the baseline) thick and below, so that equal arms both show."""

    def paint(axes: list[Axes]) -> None:
        for place, curve in enumerate(curves[: len(SERIES)]):
            steps, values = decimate(curve.loss)
            below = place == 0 and len(curves) > 1
            dashes = ("-", "--", ":")[max(0, place - 1) % 3]
            style: dict[str, Any] = {"lw": 4.0, "alpha": 0.35} if below else {"lw": 1.3, "ls": dashes}
            axes[0].plot(steps, values, color=SERIES[place], label=label(curve.name), **style)
            missing = np.flatnonzero(~np.isfinite(curve.loss))
            if len(missing):
                axes[0].axvline(float(missing[0]), color=LIMIT, lw=1.0, ls=":")
        axes[0].set(xlabel="step", ylabel="loss")
        _ticks(axes[0])
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    ends = "; ".join(_course(curve) for curve in curves)
    return draw(paint, alt=f"Loss by training step. {ends}.")


@drawn_once
def difference(values: Doubles, *, tolerance: float | None, floor: float | None, first: int | None, name: str) -> Plot:
    """|candidate - baseline| [T] in powers of ten, zeros on a line of their own at the bottom."""
    limits = [value for value in (tolerance, floor) if value is not None and 0 < value < math.inf]
    positive = values[np.isfinite(values) & (values > 0)]
    lowest = min([*limits, float(positive.min())] if len(positive) else limits, default=1.0)
    bottom = math.floor(math.log10(lowest)) - 1.0

    def paint(axes: list[Axes]) -> None:
        axis = axes[0]
        steps, shown = decimate(values)
        heights = [math.log10(value) if value > 0 else bottom for value in shown.tolist()]
        axis.plot(steps, heights, color=SERIES[0], lw=1.2, label=label(name, 60), zorder=3)
        if len(steps) <= 120:
            seen = [(at, height) for at, height in zip(steps, heights, strict=True) if height > bottom]
            axis.plot([at for at, _ in seen], [height for _, height in seen], "o", color=SERIES[0], ms=2.5, zorder=3)
        top = max(heights, default=bottom)
        if tolerance is not None:
            top = max(top, math.log10(tolerance))
            axis.axhline(math.log10(tolerance), color=LIMIT, lw=1.3, ls="--", label=f"tolerance {tolerance:g}")
        if floor is not None:
            height = math.log10(floor) if floor > 0 else bottom
            # a band below, since a difference often lies on it
            axis.axhline(height, color=SERIES[2], lw=4.0, alpha=0.45, label=f"noise floor {number(floor)}")
        if first is not None:
            axis.axvline(first, color=INK, lw=1.0, ls=":", label=f"first differing step {first}")
        _decades(axis, bottom, top)
        axis.set(xlabel="step", ylabel="absolute difference")
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    return draw(paint, alt=_difference_words(values, tolerance, floor, first, name), heights=(2.7,))


@drawn_once
def gradients(points: Sequence[tuple[int, str, float]], tolerance: float | None) -> Plot:
    """Largest gradient differences: points of (layer, kind of tensor, difference), worst of the judged steps."""
    kinds = list(dict.fromkeys(kind for _, kind, _ in points))
    positive = [value for _, _, value in points if 0 < value < math.inf]
    lowest = min([*positive, *([tolerance] if tolerance else [])], default=1.0)
    bottom = math.floor(math.log10(lowest)) - 1.0

    def paint(axes: list[Axes]) -> None:
        axis, top = axes[0], bottom
        for place, kind in enumerate(kinds[: len(SERIES)]):
            mine = [(layer, value) for layer, name, value in points if name == kind and math.isfinite(value)]
            heights = [math.log10(value) if value > 0 else bottom for _, value in mine]
            top = max([top, *heights])
            # Kinds side by side: at 0 they would hide each other.
            shift = (place - min(len(kinds), len(SERIES)) / 2) * 0.1
            layers = [layer + shift for layer, _ in mine]
            axis.plot(layers, heights, color=SERIES[place], marker=MARKS[place], ms=3.5, ls="", label=label(kind, 30))
        if tolerance:
            axis.axhline(math.log10(tolerance), color=LIMIT, lw=1.3, ls="--", label=f"bound {tolerance:g}")
            top = max(top, math.log10(tolerance))
        _decades(axis, bottom, top)
        axis.set(xlabel="layer", ylabel="largest difference")
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    worst = max((value for _, _, value in points if math.isfinite(value)), default=math.nan)
    return draw(paint, alt=f"Largest gradient difference by layer and tensor; the worst is {number(worst)}.")


@drawn_once
def memory(arms: Mapping[str, Mapping[str, Doubles]], *, per: str) -> Plot:
    """Growth of each arm's allocated and reserved memory [T] since its first sample, MiB."""

    def paint(axes: list[Axes]) -> None:
        for place, (arm, levels) in enumerate(list(arms.items())[: len(SERIES)]):
            for name, values in levels.items():
                at, shown = decimate((values - values[0]) / 2**20)
                allocated = name == "allocated"
                # thinner from arm to arm, so that equal ones all show
                width = max(1.0, 4.0 - 0.8 * place)
                style: dict[str, Any] = {"lw": width, "label": label(arm, 30)} if allocated else {"lw": 1.0, "ls": "--"}
                axes[0].plot(at, shown, color=SERIES[place], **style)
        axes[0].set(xlabel=per, ylabel="growth, MiB")
        _ticks(axes[0])
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)

    ends = "; ".join(
        f"{label(arm)}: allocated {number((levels['allocated'][-1] - levels['allocated'][0]) / 2**20)} MiB"
        for arm, levels in arms.items()
    )
    text = f"Growth of device memory by {per} since the first sample, allocated solid and reserved dashed. {ends}."
    return draw(paint, alt=text, heights=(2.0,))


def _whole_numbers(axis: Axes) -> None:
    """Ticks at whole steps or layers only."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ticks(axis: Axes) -> None:
    _whole_numbers(axis)
    axis.xaxis.set_major_formatter(plain)
    axis.yaxis.set_major_formatter(plain)


def _decades(axis: Axes, bottom: float, top: float) -> None:
    """An axis in powers of ten whose lowest line is zero."""
    highest = math.ceil(top + 1e-9)
    stride = max(1, round((highest - bottom) / 7))
    ticks = [*range(highest, int(bottom), -stride)]
    axis.set_yticks([bottom, *reversed(ticks)], ["0", *(decade(tick) for tick in reversed(ticks))])
    axis.set_ylim(bottom - 0.35, highest + 0.2)
    _whole_numbers(axis)
    axis.axhspan(bottom - 0.35, bottom + 0.25, color=GRID, lw=0, zorder=0)
    axis.xaxis.set_major_formatter(plain)
    axis.tick_params(axis="y", colors=MUTED, labelcolor=INK)


def _course(curve: Curve) -> str:
    if not len(curve.loss):
        return f"{label(curve.name)}: no steps"
    first, last = number(float(curve.loss[0])), number(float(curve.loss[-1]))
    return f"{label(curve.name)}: {first} at step 0, {last} at step {len(curve.loss) - 1}"


def _difference_words(
    values: Doubles, tolerance: float | None, floor: float | None, first: int | None, name: str
) -> str:
    finite = values[np.isfinite(values)]
    largest = number(float(finite.max())) if len(finite) else "not finite"
    text = f"Absolute loss difference by step, {label(name, 80)}: largest {largest}"
    text += f", tolerance {tolerance:g}" if tolerance is not None else ""
    text += f", noise floor {number(floor)}" if floor is not None else ""
    return text + (f"; first differing step {first}." if first is not None else "; no step differs.")
