"""Draw small images of series without axes, as inline SVG in the colors of the page (`style.css`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.report.charts.plots import Doubles, decimate

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT = 96, 18  # width and height of a small image in CSS pixels
POINTS = 40  # largest number of points of a line


@dataclass(frozen=True)
class Box:
    """A drawing area, in CSS pixels from the upper left corner of the image.

    low, high: the values at the lower and the upper edge of the area.
    """

    left: float
    top: float
    width: float
    height: float
    low: float = 0.0
    high: float = 1.0

    def y(self, value: float) -> str:
        span = self.high - self.low
        return _short(self.top + self.height * (1 - ((value - self.low) / span if span else 0.5)))

    def path(self, role: str, values: Doubles, last: float, points: int = POINTS) -> str:
        """Return the values (one for each step) as a line of the style `role`, from step 0 at the left edge to the step
        `last` at the right edge."""
        at, shown = (each.tolist() for each in decimate(values, points))
        places = (f"{_short(self.left + self.width * x / last)} {self.y(y)}" for x, y in zip(at, shown, strict=True))
        return f'<path class="{role}" d="M{"L".join(places)}"/>'


def of_series(baseline: Doubles | None, candidate: Doubles) -> Markup | None:
    """Return an image of the candidate's series (one value for each step), drawn over a broad line for the baseline's.

    Return None if the candidate has fewer than two finite values.
    """
    drawn = [values for values in (baseline, candidate) if values is not None and finite(values)]
    if not finite(candidate):
        return None
    box = around(drawn, Box(2, 3, WIDTH - 4, HEIGHT - 6))
    last = float(max(len(values) for values in drawn) - 1)
    band = box.path("baseline", drawn[0], last) if len(drawn) > 1 else ""
    return _image(f"{band}{box.path('candidate', candidate, last)}")


def of_ratios(ratios: Mapping[int, float], demanded: float) -> Markup | None:
    """Return an image with a dot for each process's ratio and a line at the demanded ratio, or None (see `dots`)."""
    values = np.array([*ratios.values(), demanded])
    body = dots(ratios, demanded, around([values], Box(3, 3, WIDTH - 6, HEIGHT - 6))) if finite(values) else None
    return None if body is None else _image(body)


def dots(ratios: Mapping[int, float], demanded: float, box: Box) -> str | None:
    """Return markup with a dot for each process's ratio, at the process's number, and a line at the demanded ratio.

    Return None for fewer than two finite ratios above 0, or for a demanded ratio of 0 or less. A process without such a
    ratio leaves a gap.
    """
    shown = {process: ratio for process, ratio in ratios.items() if ratio > 0 and math.isfinite(ratio)}
    if len(shown) < 2 or demanded <= 0:
        return None
    step = box.width / (max(shown) - min(shown))
    placed = ((box.left + (process - min(shown)) * step, ratio) for process, ratio in shown.items())
    marks = "".join(f"M{_short(at)} {box.y(ratio)}h0" for at, ratio in placed)
    limit = f"M{_short(box.left - 3)} {box.y(demanded)}H{_short(box.left + box.width + 3)}"
    return f'<path class="limit" d="{limit}"/><path class="dots" d="{marks}"/>'


def finite(values: Doubles) -> bool:
    """Return True if at least two of the values are finite."""
    return int(np.isfinite(values).sum()) > 1


def around(series: Sequence[Doubles], box: Box) -> Box:
    """Return the box with the smallest and the largest finite value of all series as `low` and `high`."""
    values = np.concatenate([each[np.isfinite(each)] for each in series])
    return replace(box, low=float(values.min()), high=float(values.max()))


def _image(body: str) -> Markup:
    """Return the image. Screen readers skip it, because the text next to it has the same content."""
    from markupsafe import Markup

    return Markup(f'<svg class="spark" aria-hidden="true" viewBox="0 0 {WIDTH} {HEIGHT}">{body}</svg>')  # noqa: S704


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
