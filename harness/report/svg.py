"""Matplotlib figures as small, deterministic SVG images in data URIs that follow the page's colour scheme.

An image in a data URI reads `prefers-color-scheme` like the page around it, so one image serves light and dark: the
drawing code uses the placeholder colours of `INK`, `SERIES` and so on, which become CSS variables here.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from harness.report.compact import compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, INK, MUTED, GRID, LIMIT = "#010101", "#010102", "#010103", "#010104", "#010105"
SERIES = ("#010201", "#010202", "#010203", "#010204", "#010205", "#010206")
# Light and dark values: 4.5:1 or better for text, 3:1 for lines, told apart by people who see few colours.
_COLOURS = {
    PAPER: ("#ffffff", "#16191d"),
    INK: ("#1b1f24", "#e6e8ea"),
    MUTED: ("#59616b", "#a3abb4"),
    GRID: ("#dfe3e8", "#2f353c"),
    LIMIT: ("#b3261e", "#ff8a80"),
    SERIES[0]: ("#0060a8", "#6cb8ff"),
    SERIES[1]: ("#b35000", "#ffb066"),
    SERIES[2]: ("#00735c", "#4fd1ae"),
    SERIES[3]: ("#8a2f8f", "#e29ae6"),
    SERIES[4]: ("#6b5b00", "#d6c24a"),
    SERIES[5]: ("#59616b", "#a3abb4"),
}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "contract-harness",
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.unicode_minus": False,
    "axes.edgecolor": MUTED,
    "axes.facecolor": PAPER,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": PAPER,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    # The lines of the grid mark the places already.
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}


@dataclass(frozen=True)
class Plot:
    """An image and what it shows in words; width and height in CSS pixels."""

    uri: str
    alt: str
    width: int
    height: int


def draw(paint: Callable[[list[Axes]], None], *, alt: str, heights: tuple[float, ...] = (2.6,)) -> Plot:
    """Let `paint` draw on axes stacked over each other, one for each of `heights` (inches), 5.2 inches wide.

    The canvas is made without pyplot: no global state, and any thread may render.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    width, height = 5.2, sum(heights) + 0.25
    stream = io.StringIO()
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        grid = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        paint(list(grid[:, 0]))
        figure.savefig(stream, format="svg")
    return Plot(data_uri(themed(stream.getvalue())), alt, round(width * 96), round(height * 96))


def themed(svg: str) -> str:
    """Placeholder colours made variables with a light and a dark value, and the image made small."""
    image, rules = compact(svg)
    used = [place for place, colour in enumerate(_COLOURS) if colour in rules]
    for place, colour in enumerate(_COLOURS):
        rules = rules.replace(colour, f"var(--{place})")
    light, dark = (_variables(used, scheme) for scheme in (0, 1))
    style = f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{rules}</style>"
    start = image.index(">") + 1
    return image[:start] + style + image[start:]


def _variables(used: list[int], scheme: int) -> str:
    pairs = list(_COLOURS.values())
    return ";".join(f"--{place}:{pairs[place][scheme]}" for place in used)


def data_uri(svg: str) -> str:
    """An SVG as a data URI without a character that HTML reads as markup: no &, <, > or double quote."""
    return "data:image/svg+xml," + quote(svg, safe=" /:;,=()[]*!@?+-._~{}|^'")


def decade(value: float, _position: float = 0) -> str:
    """`1e-3` for a tick at -3 of an axis in powers of ten; matplotlib's own would need its math text."""
    return f"1e{value:.0f}" if not -2 < value < 4 else f"{10**value:g}"


def plain(value: float, _position: float = 0) -> str:
    """A tick's number without math text or offsets."""
    return f"{value:.6g}"
