"""Plot a training: loss trajectories, their difference, gradient differences, memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    plain,
    reads_as,
)
from harness.report.text import label, number, several

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Make series small for drawing, with their spikes kept.

Doubles = NDArray[np.float64]


def decimate(values: Doubles, points: int = 400) -> tuple[Doubles, Doubles]:
    """Return indices and values [<= points, or 4], finite ones only: the smallest and largest of each bucket, in order.

    values: [T] by step. A series of at most `points` finite values comes back whole.
    """
    index = np.flatnonzero(np.isfinite(values))
    finite = values[index]
    if len(finite) <= points:
        return index.astype(np.float64), finite
    buckets = max(1, (points - 2) // 2)  # two values each, beside the first and the last of all
    size = -(-len(finite) // buckets)
    starts = np.arange(0, len(finite), size)
    kept = {0, len(finite) - 1}
    for start in starts.tolist():
        piece = finite[start : start + size]
        kept.update((start + int(piece.argmin()), start + int(piece.argmax())))
    chosen = np.array(sorted(kept))
    return index[chosen].astype(np.float64), finite[chosen]


MARKS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Curve:
    """One arm's series [T]."""

    name: str
    role: Role
    values: Doubles

    @property
    def label(self) -> str:
        return label(name_of(label(self.name), self.role), 50)


@drawn_once
def trajectories(curves: Sequence[Curve], metric: str = "loss") -> Plot:
    """Plot the loss, or another metric, by step: one line for each arm, in the style of its role."""

    def paint(axes: list[Axes]) -> None:
        for curve in sorted(curves, key=lambda curve: list(Role).index(curve.role)):
            steps, values = decimate(curve.values)
            axes[0].plot(steps, values, label=curve.label, **line_of(curve.role))
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
    """Plot |candidate - baseline| [T] in powers of ten, with zeros on a line of their own at the bottom."""
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
            # a band below, since a difference often lies on it
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
def gradients(points: Sequence[tuple[int, str, float]], bounds: Sequence[float]) -> Plot:
    """Plot the largest gradient differences: points of (layer, kind of tensor, difference), worst of the judged steps.

    If there are more kinds than looks, those that differ least share the last one.
    """
    points = _of_few_kinds(points)
    kinds = list(dict.fromkeys(kind for _, kind, _ in points))
    positive = [value for _, _, value in points if 0 < value < math.inf]
    bottom = math.floor(math.log10(min([*positive, *bounds], default=1.0))) - 1.0
    beyond = math.ceil(math.log10(max([*positive, *bounds], default=1.0)) + 1e-9) + 1.0
    wild = any(not math.isfinite(value) for _, _, value in points)

    def paint(axes: list[Axes]) -> None:
        axis, top = axes[0], bottom
        for place, kind in enumerate(kinds):
            mine = [(layer, value) for layer, name, value in points if name == kind]
            heights = [_height(value, bottom, beyond) for _, value in mine]
            top = max([top, *heights])
            # Kinds side by side: at 0 they would hide each other.
            shift = (place - len(kinds) / 2) * 0.1
            layers = [layer + shift for layer, _ in mine]
            axis.plot(layers, heights, color=SERIES[place], marker=MARKS[place], ms=3.5, ls="", label=label(kind, 30))
        for bound in bounds:
            axis.axhline(math.log10(bound), color=LIMIT, lw=1.3, ls="--", label=f"bound {bound:g}")
            top = max(top, math.log10(bound))
        _decades(axis, bottom, top, beyond=beyond if wild else None)
        axis.set(xlabel="layer", ylabel="largest difference")
        legend(axis)

    worst = max((value for _, _, value in points), default=math.nan)
    said = number(worst) if math.isfinite(worst) else "not finite"
    return draw(paint, alt=f"Largest gradient difference by layer and tensor; the worst is {said}.", heights=(2.3,))


def _height(value: float, bottom: float, beyond: float) -> float:
    """Return where a difference stands on an axis in powers of ten: 0 below all, what is not finite above all."""
    return beyond if not math.isfinite(value) else math.log10(value) if value > 0 else bottom


def _of_few_kinds(points: Sequence[tuple[int, str, float]]) -> list[tuple[int, str, float]]:
    """Return the points; if there are more kinds than looks, those that differ least get one common name."""
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
    """Plot how the candidate's allocated and reserved memory [T] grew since its first sample, MiB."""

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
    """Set ticks at whole steps or layers only."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ticks(axis: Axes) -> None:
    _whole_numbers(axis)
    axis.xaxis.set_major_formatter(plain)
    axis.yaxis.set_major_formatter(plain)


def _decades(axis: Axes, bottom: float, top: float, beyond: float | None = None) -> None:
    """Draw the upright axis in powers of ten, with zero as its lowest line, and a line for what is not finite."""
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


BROAD = 5.0  # points, of whatever is the baseline's: what lies on it is seen, and so is the band on both sides


class Role(StrEnum):
    """What an arm is to the claim that a plot belongs to."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    CONTROL = "control"  # one that must differ, or that does not train
    REPLICA = "again"  # a further run of what is drawn as the baseline
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
    Role.OTHER: {"lw": 1.4, "ls": "-.", "zorder": 2.1},
}


def line_of(role: Role) -> dict[str, Any]:
    """Return the style of a line; the baseline's lies below all others, so that equal arms both show."""
    return {"color": COLOURS[role], **_LINES[role]}


def name_of(arm: str, role: Role) -> str:
    """Return an arm's name in a legend, with its role."""
    return f"{arm} ({role})" if role else arm
