"""What a page that would be too large leaves out, in which order."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.blocks import JudgedPlot, Part, Section, Table
from harness.report.charts.svg import Plot
from harness.report.html import ROWS, page_within

FRAME = 300  # bytes of the page around a plot
ROW = 100  # bytes of a table's row on the pages made here


def plot(size: int) -> Plot:
    """So many bytes of a page, with the frame."""
    return Plot("0 0 1 1", "p" * (size - FRAME), {}, "", 1, 1)


def table(rows: int, *, folded: bool) -> Table:
    return Table("rows", ["a"], [["r"]] * rows, folded=folded)


def part(name: str, plot_bytes: int = 0, rows: int = 0, *, folded: bool = True) -> Part:
    plots = [plot(plot_bytes)] if plot_bytes else []
    return Part(name, [], plots, [table(rows, folded=folded)] if rows else [], [f"run of {name}"])


class Pages:
    """Renders sections as so many bytes, and remembers the last ones."""

    def __init__(self) -> None:
        self.shown: Sequence[Section] = []
        self.brief = False

    def __call__(self, sections: Sequence[Section], brief: bool) -> str:
        self.shown, self.brief = sections, brief
        parts = [part for section in sections for part in section.parts]
        rows = sum(len(table.rows) for part in parts for table in part.tables)
        plots = [plot for part in parts for plot in (*part.plots, *(each.plot for each in part.judged))]
        return "x" * (rows * ROW + sum(FRAME + len(plot.body) for plot in plots))

    def drawn(self) -> list[str]:
        return [part.title for section in self.shown for part in section.parts if part.plots or part.judged]


def section(anchor: str, *parts: Part) -> Section:
    return Section(anchor, anchor, "", list(parts))


def test_a_page_within_its_budget_is_unchanged() -> None:
    sections = [section("memory", part("a", 1000, rows=20))]
    pages = Pages()
    assert len(page_within(3000, sections, set(), pages)) == 3000
    assert pages.shown == sections


def test_folded_tables_are_cut_first_and_state_the_rows_left_out() -> None:
    pages = Pages()
    sections = [section("memory", part("a", 1000, rows=20), part("b", rows=20, folded=False))]
    assert len(page_within(4000, sections, set(), pages)) == 1000 + (ROWS + 20) * ROW
    [short], [whole] = (shown.tables for shown in pages.shown[0].parts)
    assert (len(short.rows), short.left_out) == (ROWS, 20 - ROWS)
    assert (len(whole.rows), whole.left_out) == (20, 0)
    assert not pages.brief


def test_a_page_beyond_its_budget_shortens_cards_and_folded_rows_of_passing_claims() -> None:
    pages = Pages()
    sections = [section("memory", part("a", 1000, rows=20), part("b", rows=20))]
    assert len(page_within(1500 + (ROWS - 1) * ROW, sections, {"run of b"}, pages)) == 1000 + ROWS * ROW
    [lost], [spared] = (shown.tables for shown in pages.shown[0].parts)
    assert (len(lost.rows), lost.left_out) == (0, 20)
    assert (len(spared.rows), spared.left_out) == (ROWS, 20 - ROWS)
    assert pages.brief


def test_no_plot_is_left_out_of_an_oversized_page() -> None:
    pages = Pages()
    judged = Part("judged", runs=["run"], judged=[JudgedPlot(plot(2000), frozenset({("c", "claim", "w")}))])
    page_within(1500, [section("memory", judged, part("held", 3000)), section("jit", part("jit", 1000))], set(), pages)
    assert pages.drawn() == ["judged", "held", "jit"]


def test_unfolded_tables_of_passing_claims_are_cut_largest_first_before_any_plot() -> None:
    pages = Pages()
    held, small = part("held", 1000, rows=20, folded=False), part("small", rows=3, folded=False)
    sections = [section("memory", held, small, part("failed", rows=30, folded=False))]
    page_within(5700, sections, {"run of failed"}, pages)
    assert [len(shown.tables[0].rows) for shown in pages.shown[0].parts] == [0, 3, 30]
    assert pages.drawn() == ["held"]
