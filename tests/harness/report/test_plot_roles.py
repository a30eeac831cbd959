"""Every plot of every section: one colour and width a role, the baseline broad, and a legend for all that is drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from budget import slow_but
from drawn_plots import DrawnPlot, drawn_plots
from published_pages import REPORTS, PublishedOf
from report_views import full_view, small_view

from harness.report.blocks import Unit
from harness.report.charts import svg
from harness.report.charts.plots import BROAD, Curve, Role, trajectories
from harness.report.charts.svg import BASELINE, CANDIDATE, CONTROL, FLOOR, GRID, INK, LIMIT, MUTED, PAPER, REPLICA, Plot
from harness.report.text import label

PUBLISHED = sorted(
    archive.parent for archive in REPORTS.rglob("run.tar.xz") if not {"statistics", "accuracy"} & set(archive.parts)
)
MADE = {"every kind": full_view, "equal arms": small_view}
RUNS = [*MADE, *(path.relative_to(REPORTS).as_posix() for path in PUBLISHED)]
DRAWN = {"trajectories", "gradients", "throughput", "memory", "jit", "costs"}
DRAWN |= {"seeds", "resume", "evaluation", "long_replay"}
# What else may be drawn in the colour of a role: what is made of the candidate and the baseline together.
OF_CANDIDATE = r".*candidate.*|a seed|interval of the trimmed mean|trimmed mean .*|.* against .*"
COLOURS = {
    BASELINE: r".*baseline.*",
    CANDIDATE: OF_CANDIDATE,
    CONTROL: r".*\(control\)",
    REPLICA: r".*\(again\)",
    FLOOR: r"noise floor .*",
    LIMIT: r"(tolerance|bound|demanded) .*|margin|throttled|not finite .*",
}


class Mark(NamedTuple):
    """Something drawn: its name ("" for none), its colours, its width in points, and whether it lies in the axes."""

    name: str
    colours: frozenset[str]
    width: float
    inside: bool


def marks(plot: Plot) -> list[Mark]:
    root = ET.fromstring(f"<svg>{plot.markup('p')}</svg>")  # noqa: S314 - our own output
    return list(_marks(root, {}, plot))


def _marks(node: ET.Element, inherited: dict[str, str], plot: Plot) -> Iterator[Mark]:
    for child in node:
        known = {**inherited, **child.attrib}
        if child.tag in {"path", "rect", "use"} and "class" in known:
            style = dict(rule.split(":", 1) for rule in plot.looks[known["class"]].split(";"))
            colours = {style.get(key, "none") for key in ("fill", "stroke")} - {"none"}
            width = float(style.get("stroke-width", "0")) / (8 / 3)
            name = known.get("data-s") or known.get("data-n") or ""
            yield Mark(name, frozenset(colours), width, "clip-path" in known)
        if child.tag != "defs":
            yield from _marks(child, known, plot)


def looks(plot: Plot) -> dict[str, set[str]]:
    """The names of series by the style of their lines."""
    root = ET.fromstring(f"<svg>{plot.markup('p')}</svg>")  # noqa: S314 - our own output
    found: dict[str, set[str]] = {}
    for mark in root.iter():
        if "data-s" in mark.attrib:
            found.setdefault(plot.looks[mark.attrib["class"]], set()).add(mark.attrib["data-s"])
    return found


@pytest.mark.parametrize("role", Role)
def test_each_of_several_arms_of_one_role_has_a_line_of_its_own(role: Role) -> None:
    """Regression: two controls were both drawn with the same dashes."""
    curves = [Curve(f"arm {place}", each, np.arange(9.0) + place) for place in range(5) for each in (Role.OTHER, role)]
    curves = [Curve(f"{curve.name} {place}", curve.role, curve.values) for place, curve in enumerate(curves)]
    assert sorted(map(len, looks(trajectories(curves)).values())) == [1] * len(curves)


def words(plot: Plot) -> set[str]:
    root = ET.fromstring(f"<svg>{plot.markup('p')}</svg>")  # noqa: S314 - our own output
    return {str(text.text) for text in root.iter("text")}


@pytest.mark.parametrize("name", slow_but(MADE, RUNS))
def test_marks_of_a_plot_are_drawn_and_named_by_their_roles(name: str, published: PublishedOf) -> None:
    """One test checks all plots of a run, because judging and drawing a run takes seconds."""
    for anchor, plot, units, parts in plots_of(name, published):
        drawn = marks(plot)
        every_mark_is_in_the_legend_with_its_colour(plot, drawn)
        a_role_has_its_colour_and_nothing_else_has_it(plot, drawn)
        the_baseline_is_the_broad_band(plot, drawn)
        if anchor == "trajectories" and plot.alt.startswith("Loss"):
            the_arms_have_the_roles_that_the_claims_give_them(plot, drawn, units, parts)


def plots_of(name: str, published: PublishedOf) -> tuple[DrawnPlot, ...]:
    return drawn_plots(MADE[name]()) if name in MADE else published(REPORTS / name).plots


def every_mark_is_in_the_legend_with_its_colour(plot: Plot, drawn: list[Mark]) -> None:
    letters = words(plot)
    samples = {colour for mark in drawn if not mark.name and not mark.inside for colour in mark.colours}
    assert {mark.colours for mark in drawn if mark.inside and not mark.name} <= {frozenset({GRID})}, plot.alt
    for mark in drawn:
        if mark.name:
            assert mark.name in letters, plot.alt
            assert mark.colours <= samples, (mark, plot.alt)


def a_role_has_its_colour_and_nothing_else_has_it(plot: Plot, drawn: list[Mark]) -> None:
    for mark in drawn:
        for colour in mark.colours & set(COLOURS) if mark.name else ():
            assert re.fullmatch(COLOURS[colour], mark.name), (mark, plot.alt)
        if mark.name.endswith("(baseline)") or mark.name in {"A/A baseline", "baseline, ms a step"}:
            assert mark.colours == {BASELINE}, (mark, plot.alt)


def the_baseline_is_the_broad_band(plot: Plot, drawn: list[Mark]) -> None:
    lines = [mark for mark in drawn if mark.inside and mark.name]
    broad = [mark for mark in lines if re.search(r"\(baseline\)|^baseline", mark.name)]
    thin = [mark for mark in lines if re.search(r"\(candidate\)|\(control\)|\(again\)|^candidate, ", mark.name)]
    assert all(mark.width == pytest.approx(BROAD, abs=0.1) for mark in broad), plot.alt
    assert all(mark.width <= BROAD / 2 for mark in thin), plot.alt


def the_arms_have_the_roles_that_the_claims_give_them(
    plot: Plot, drawn: list[Mark], units: frozenset[Unit], parts: Sequence[Mapping[str, str]]
) -> None:
    named = {mark.name for mark in drawn if mark.name and not mark.name.startswith("not finite")}
    seen = {re.sub(r", mean of \d+ ranks| \(capture failed\)", "", name) for name in named}
    roles = [role for arms in parts if (role := roles_of(arms)) <= seen]
    assert bool(roles) is bool(units) or any("run 0" in one for one in seen), plot.alt


def roles_of(arms: Mapping[str, str]) -> set[str]:
    """The names under which a claim's two arms are drawn."""
    return {f"{label(arms[role])} ({role})" for role in (Role.CANDIDATE, Role.BASELINE) if role in arms}


@pytest.mark.slow
def test_every_section_with_plots_is_among_the_tested_sections(published: PublishedOf) -> None:
    assert {anchor for name in RUNS for anchor, *_ in plots_of(name, published)} == DRAWN


# --- colours -----------------------------------------------------------------------------------------------------


def contrast(first: str, second: str) -> float:
    """By WCAG 2, of two colours `#rrggbb`."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_plot_colours_have_enough_contrast_to_the_background_and_to_each_other(scheme: int) -> None:
    shown = {name: pair[scheme] for name, pair in svg._COLOURS.items()}
    for name, colour in shown.items():
        if name not in {PAPER, GRID}:
            assert contrast(colour, shown[PAPER]) >= (4.5 if name in {INK, MUTED} else 3.0), name
    assert contrast(shown[CANDIDATE], shown[BASELINE]) > 2
