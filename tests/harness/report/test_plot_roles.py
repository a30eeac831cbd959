"""Every plot of every section: one colour and width a role, the baseline broad, and a legend for all that is drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from published_pages import REPORTS, judged_run
from report_views import full_view, small_view

from harness.contract.claims import AnyPart
from harness.report import budget, svg
from harness.report.blocks import JudgedPlot, Unit
from harness.report.html import evidence
from harness.report.plots_roles import BROAD, Role
from harness.report.svg import BASELINE, CANDIDATE, CONTROL, FLOOR, GRID, INK, LIMIT, MUTED, PAPER, REPLICA, Plot
from harness.report.text import label
from harness.report.view import ReportView

PUBLISHED = sorted(
    archive.parent for archive in REPORTS.rglob("run.tar.xz") if not {"statistics", "accuracy"} & set(archive.parts)
)
MADE = {"every kind": full_view, "equal arms": small_view}
RUNS = [*MADE, *(path.relative_to(REPORTS).as_posix() for path in PUBLISHED)]
DRAWN = {"trajectories", "gradients", "throughput", "memory", "jit", "costs"}
DRAWN |= {"seeds", "resume", "evaluation", "long_replay"}
# What else may be drawn in the colour of a role: what is made of the candidate and the baseline together.
OF_CANDIDATE = r".*candidate.*|a seed|interval of the mean|mean .*|.* against .*"
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


@cache
def view_of(name: str) -> ReportView:
    return MADE[name]() if name in MADE else judged_run(REPORTS / name)


@cache
def plots_of(name: str) -> tuple[tuple[str, Plot, frozenset[Unit]], ...]:
    """Every plot of a run, whether it has room on a page or not, with its section and the units that it is of."""
    return tuple(
        (section.anchor, drawn.plot, drawn.units)
        for section in evidence(view_of(name))
        for part in section.parts
        for drawn in [*part.judged, *(JudgedPlot(plot, frozenset()) for plot in part.plots)]
    )


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


def words(plot: Plot) -> set[str]:
    root = ET.fromstring(f"<svg>{plot.markup('p')}</svg>")  # noqa: S314 - our own output
    return {str(text.text) for text in root.iter("text")}


@pytest.mark.parametrize("name", RUNS)
def test_every_mark_is_in_the_legend_with_its_colour(name: str) -> None:
    for _, plot, _ in plots_of(name):
        drawn = marks(plot)
        samples = {colour for mark in drawn if not mark.name and not mark.inside for colour in mark.colours}
        assert {mark.colours for mark in drawn if mark.inside and not mark.name} <= {frozenset({GRID})}, plot.alt
        for mark in drawn:
            if mark.name:
                assert mark.name in words(plot), plot.alt
                assert mark.colours <= samples, (mark, plot.alt)


@pytest.mark.parametrize("name", RUNS)
def test_a_role_has_its_colour_and_nothing_else_has_it(name: str) -> None:
    for _, plot, _ in plots_of(name):
        for mark in marks(plot):
            for colour in mark.colours & set(COLOURS) if mark.name else ():
                assert re.fullmatch(COLOURS[colour], mark.name), (mark, plot.alt)
            if mark.name.endswith("(baseline)") or mark.name in {"A/A baseline", "baseline, ms a step"}:
                assert mark.colours == {BASELINE}, (mark, plot.alt)


@pytest.mark.parametrize("name", RUNS)
def test_the_baseline_is_the_broad_band(name: str) -> None:
    for _, plot, _ in plots_of(name):
        lines = [mark for mark in marks(plot) if mark.inside and mark.name]
        broad = [mark for mark in lines if re.search(r"\(baseline\)|^baseline", mark.name)]
        thin = [mark for mark in lines if re.search(r"\(candidate\)|\(control\)|\(again\)|^candidate, ", mark.name)]
        assert all(mark.width == pytest.approx(BROAD, abs=0.1) for mark in broad), plot.alt
        assert all(mark.width <= BROAD / 2 for mark in thin), plot.alt


@pytest.mark.parametrize("name", RUNS)
def test_the_arms_have_the_roles_that_the_claims_give_them(name: str) -> None:
    for anchor, plot, units in plots_of(name):
        if anchor != "trajectories" or not plot.alt.startswith("Loss"):
            continue
        seen = {mark.name for mark in marks(plot) if mark.name and not mark.name.startswith("not finite")}
        roles = [role for part in parts_of(name, units) if (role := roles_in(part)) <= seen]
        assert bool(roles) is bool(units) or any("run 0" in one for one in seen), plot.alt


def parts_of(name: str, units: frozenset[Unit]) -> list[AnyPart]:
    return [
        part
        for verdict, parts, _ in view_of(name).judged()
        for part in parts
        if (verdict.contract, verdict.claim, verdict.workload) in units
    ]


def roles_in(part: AnyPart) -> set[str]:
    """The names under which a claim's two arms are drawn."""
    arms = part.arms()
    return {f"{label(arms[role])} ({role})" for role in (Role.CANDIDATE, Role.BASELINE) if role in arms}


def test_every_section_with_plots_is_looked_at() -> None:
    assert {anchor for name in RUNS for anchor, _, _ in plots_of(name)} == DRAWN
    assert set(budget.ORDER) == DRAWN


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
def test_all_that_is_drawn_stands_out_from_the_paper_and_thin_lines_from_the_band(scheme: int) -> None:
    shown = {name: pair[scheme] for name, pair in svg._COLOURS.items()}
    for name, colour in shown.items():
        if name not in {PAPER, GRID}:
            assert contrast(colour, shown[PAPER]) >= (4.5 if name in {INK, MUTED} else 3.0), name
    assert contrast(shown[CANDIDATE], shown[BASELINE]) > 2
