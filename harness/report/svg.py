"""Matplotlib figures as small, deterministic SVG images in data URIs that follow the page's colour scheme.

An image in a data URI reads `prefers-color-scheme` like the page around it, so one image serves light and dark: the
drawing code uses the placeholder colours of `INK`, `SERIES` and so on, which become CSS variables here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

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
    "svg.fonttype": "path",
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
    "xtick.color": MUTED,
    "ytick.color": MUTED,
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
    """Placeholder colours made variables with a light and a dark value, and the text made small.

    The metadata goes: it holds the date, and equal runs must give equal bytes.
    """
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = _shortened(svg)
    rules: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return f"class='{rules.setdefault(found[1].replace(': ', ':').replace('; ', ';'), f'k{len(rules)}')}'"

    svg = re.sub(r"style='([^']*)'", name, svg)
    sheet = "".join(f".{key}{{{rule}}}" for rule, key in rules.items())
    for place, colour in enumerate(_COLOURS):
        sheet = sheet.replace(colour, f"var(--{place})")
    style = (
        f"<style>:root{{{_variables(0)}}}@media (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}{sheet}</style>"
    )
    start = svg.index(">", svg.index("<svg")) + 1
    return svg[:start] + style + svg[start:]


def _variables(scheme: int) -> str:
    return ";".join(f"--{place}:{pair[scheme]}" for place, pair in enumerate(_COLOURS.values()))


def _shortened(svg: str) -> str:
    """Coordinates to a tenth of a point, paths without needless spaces, no names that nothing refers to.

    Scales are left alone: a glyph's (0.015625) rounded would change the size of every letter.
    """
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><").replace("xlink:href", "href")
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace(' style=""', "")
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r'\b(d|x|y|transform)="([^"]*)"', lambda found: f'{found[1]}="{_coordinates(found[2])}"', svg)
    svg = re.sub(r'transform="translate\((-?[\d.]+) 0\)"', r'x="\1"', svg)
    names: dict[str, str] = {}
    for found in re.findall(r'(?<=[ ]id=")[^"]*(?=")', svg):
        names.setdefault(found, f"i{len(names)}")
    svg = re.sub(r'(?<= id=")[^"]*|(?<=href="#)[^"]*|(?<=url\(#)[^)]*', lambda found: names[found[0]], svg)
    return svg.strip().replace('"', "'")


def _coordinates(text: str) -> str:
    parts = re.split(r"(scale\([^)]*\))", text)
    parts[::2] = [re.sub(r"(-?\d+)\.(\d)\d*", _tenth, part) for part in parts[::2]]
    return (
        re.sub(r" ?([A-Za-z]) ?(?=[-\d]|$|[A-Za-z])", r"\1", "".join(parts)).strip()
        if len(parts) == 1
        else "".join(parts)
    )


def _tenth(found: re.Match[str]) -> str:
    """A coordinate to one decimal, without a trailing zero."""
    return f"{float(found[0]):.1f}".removesuffix(".0")


def data_uri(svg: str) -> str:
    """An SVG as a data URI without a character that HTML reads as markup: no &, <, > or double quote."""
    return "data:image/svg+xml," + quote(svg, safe=" /:;,=()[]*!@?+-._~{}|^'")


def decade(value: float, _position: float = 0) -> str:
    """`1e-3` for a tick at -3 of an axis in powers of ten; matplotlib's own would need its math text."""
    return f"1e{value:.0f}" if not -2 < value < 4 else f"{10**value:g}"


def plain(value: float, _position: float = 0) -> str:
    """A tick's number without math text or offsets."""
    return f"{value:.6g}"
