"""Draw matplotlib figures as small SVG images in the color scheme of the page. Equal input gives equal bytes.

The drawing code uses placeholder colors, such as `INK` and `SERIES`. This module replaces them by CSS variables.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from harness.platform.paths import moved_caches
from harness.report.charts.compact import ID, Scale, compact
from harness.report.text import label

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

PAPER, INK, MUTED, GRID = "#010101", "#010102", "#010103", "#010104"
BASELINE, CANDIDATE, CONTROL, REPLICA, FLOOR, LIMIT = (f"#01020{place}" for place in range(1, 7))
SERIES = tuple(f"#01030{place}" for place in range(1, 7))  # colors of series without a role
# The value of each color in light and in dark mode. The contrast is at least 4.5:1 for text and 3:1 for lines. People
# with color blindness can distinguish the values.
_COLOURS = {
    PAPER: ("#ffffff", "#16191d"),
    INK: ("#1b1f24", "#e6e8ea"),
    MUTED: ("#59616b", "#a3abb4"),
    GRID: ("#dfe3e8", "#2f353c"),
    BASELINE: ("#c27a12", "#b07a30"),
    CANDIDATE: ("#00457c", "#8fcbff"),
    CONTROL: ("#8a2f8f", "#e29ae6"),
    REPLICA: ("#00735c", "#4fd1ae"),
    FLOOR: ("#6b5b00", "#d6c24a"),
    LIMIT: ("#b3261e", "#ff8a80"),
    SERIES[0]: ("#00738a", "#5fd0e6"),
    SERIES[1]: ("#b0236a", "#ff8fc4"),
    SERIES[2]: ("#7a4a2b", "#d0a07c"),
    SERIES[3]: ("#4b4bb8", "#a9a9ff"),
    SERIES[4]: ("#3f7a1f", "#9ad46a"),
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
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    # no tick marks, because there are grid lines
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}


MOST_KEPT = 256  # largest number of plots that the cache keeps; each has about 20 KB
_drawn: dict[bytes, Plot] = {}  # digest of a plot's function and arguments -> the plot; the oldest entry first
Given = ParamSpec("Given")


@dataclass(frozen=True)
class Plot:
    """An image and its description in words (`alt`). width, height: in CSS pixels.

    box: the SVG view box. body: markup in which every id has the prefix `ID`. looks: class in `body` -> style.
    """

    box: str
    body: str
    looks: Mapping[str, str]
    alt: str
    width: int
    height: int

    def markup(self, name: str) -> Markup:
        """Return the content of the `svg` element. name: a prefix for its ids that is unique on the page."""
        from markupsafe import Markup

        return Markup(self.body.replace(ID, name))  # noqa: S704 - matplotlib's own output, text escaped


def draw(paint: Callable[[list[Axes]], None], *, alt: str, heights: tuple[float, ...] = (2.6,)) -> Plot:
    """Call `paint` with axes that are stacked vertically, one for each of `heights` (inches). All axes are 5.2 inches
    wide.

    The canvas is created without pyplot and its global state, so that any thread may draw.
    """
    os.environ.update(moved_caches())
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    width, height = 5.2, sum(heights) + 0.25
    stream = io.StringIO()
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_visible(False)  # the page provides the background
        canvas = FigureCanvasSVG(figure)
        grid = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        axes: list[Axes] = list(grid[:, 0])
        paint(axes)
        for axis in axes:
            axis.patch.set_visible(False)
            _name_marks(axis)
        # Do not use `savefig`. It gives the same bytes, but draws everything twice because of the layout.
        canvas.print_svg(stream)  # type: ignore[no-untyped-call]
        scales = [_scale(axis, 72 * width, 72 * height) for axis in axes]
    return Plot(*compact(stream.getvalue(), scales), alt, round(width * 96), round(height * 96))


def legend(axis: Axes, *, columns: int = 2) -> None:
    """Add a legend above the axes, in a single column if a name is long."""
    _, names = axis.get_legend_handles_labels()
    fits = max(map(len, names), default=0) <= 72 // columns
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns if fits else 1, borderaxespad=0.2)


def named(mark: Artist, name: str) -> None:
    """Give the name of a legend entry to a drawn shape of the same style that is not itself in the legend."""
    mark.set_gid(f"mark:{name}")


def reads_as(axis: Axes, kind: Literal["whole", "named", "events"], *, zero: float | None = None) -> None:
    """Record for the page's script how to read the horizontal axis: as whole numbers, tick labels or events.

    By default, the script reads the axis as seconds. zero: on a vertical axis in powers of ten, the position of the
    line for 0.
    """
    axis.set_gid(f"{kind} {'' if zero is None else f'{zero:g}'}")


def _name_marks(axis: Axes) -> None:
    """Give each drawn line or patch its name in the legend, with the prefix `series:` for a line whose points are data
    on both axes, and `mark:` for any other shape."""
    for mark in (*axis.lines, *axis.patches):
        name = str(mark.get_label())
        if mark.get_gid() is None and not name.startswith("_"):
            level, upright = mark.get_transform().contains_branch_seperately(axis.transData)
            mark.set_gid(f"{'series' if level and upright and mark in axis.lines else 'mark'}:{name}")


def _scale(axis: Axes, width: float, height: float) -> Scale:
    """Return the position of the axes and the values at their ends, for the page's script. width, height: size of the
    image in points."""
    place = axis.get_position()
    kind, _, zero = str(axis.get_gid() or "").partition(" ")
    attributes = {
        "data-x": " ".join(f"{end:.6g}" for end in axis.get_xlim()),
        "data-y": " ".join(f"{end:.6g}" for end in axis.get_ylim()),
        "data-k": kind,
        "data-z": zero,
        "data-l": label(axis.get_xlabel().partition(";")[0], 60) if axis.get_xlabel() else "",
    }
    return Scale(place.x0 * width, (1 - place.y1) * height, {name: text for name, text in attributes.items() if text})


def drawn_once(function: Callable[Given, Plot]) -> Callable[Given, Plot]:
    """Return `function` with a cache. For equal arguments (plain values and arrays) a plot is drawn only once.

    Drawing a plot takes 0.1 to 0.2 s. Claims that hold in bits often have equal plots (13 of 67 plots in one gate).
    """

    @wraps(function)
    def figure(*arguments: Given.args, **keywords: Given.kwargs) -> Plot:
        shown = pickle.dumps((function.__qualname__, arguments, sorted(keywords.items())))
        asked = hashlib.sha256(shown).digest()
        if asked not in _drawn:
            while len(_drawn) >= MOST_KEPT:
                del _drawn[next(iter(_drawn))]
            _drawn[asked] = function(*arguments, **keywords)
        return _drawn[asked]

    return figure


def forget() -> None:
    """Remove all plots from the cache of `drawn_once`."""
    _drawn.clear()


def stylesheet(plots: Iterable[Plot]) -> str:
    """Return the CSS for the images of a page: the light and the dark value of each color, and all classes."""
    looks = {name: rule for plot in plots for name, rule in plot.looks.items()}
    if not looks:
        return ""
    rules = "".join(f".{name}{{{rule}}}" for name, rule in sorted(looks.items()))
    for place, colour in enumerate(_COLOURS):
        rules = rules.replace(colour, f"var(--p{place})")
    light, dark = (
        ";".join(f"--p{place}:{pair[scheme]}" for place, pair in enumerate(_COLOURS.values())) for scheme in (0, 1)
    )
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{rules}\n"


def decade(value: float, _position: float = 0) -> str:
    """Return the label of a tick on an axis in powers of ten, such as `1e-3` at -3. matplotlib's own label would need
    its math text, which is switched off here."""
    return f"1e{value:.0f}" if not -2 < value < 4 else f"{10**value:g}"


def plain(value: float, _position: float = 0) -> str:
    """Return the number of a tick as text, without matplotlib's math text and without an offset at the axis."""
    return f"{value:.6g}"
