"""Define the building blocks of report sections. The page template uses only these blocks, and does not read
evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.report.charts.svg import Plot
from harness.report.text import line, number

ROWS_SHOWN = 100
CELL = 160
Unit = tuple[str, str, str]  # names of contract, claim and workload


@dataclass(frozen=True)
class Table:
    """A table with a caption. numeric: indices of right-aligned columns. folded: True if it is collapsed at first.

    The style sheet has rules for the first ten columns only.
    """

    caption: str
    columns: list[str]
    rows: list[list[str]]
    numeric: frozenset[int] = frozenset()
    folded: bool = False
    left_out: int = 0
    links: tuple[str | None, ...] = ()  # the address to which the first cell of each row links, or None


@dataclass(frozen=True)
class JudgedPlot:
    """A plot of data from which units were judged. The plot is shown in the first card (box about a unit) of one of
    these units."""

    plot: Plot
    units: frozenset[Unit]


@dataclass(frozen=True)
class Part:
    """One topic of a section, under its own heading: sentences, plots, tables, and a listing that is shown without
    changes.

    `plots`: plots of data that decides nothing. `judged`: plots of data that decides units. `drawn_with`: anchor and
    claim of each card to which a plot of `judged` was moved.
    """

    title: str
    text: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # ids of the runs that this part is about
    listing: str = ""
    judged: list[JudgedPlot] = field(default_factory=list)
    drawn_with: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading.

    `lead` explains how to read the section. If the section is `folded`, only `lead` is visible at first.
    """

    anchor: str
    title: str
    lead: str
    parts: list[Part]
    folded: bool = False


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    folded: bool = False,
    shown: int = ROWS_SHOWN,
    cell: int = CELL,
) -> Table:
    """Return a table of any values. Numbers are formatted and right-aligned, and texts are shortened.

    shown: largest number of rows; further rows are only counted. cell: largest number of characters in a cell. Use a
    larger number for sentences and lists that must be complete.
    """
    numeric = frozenset(
        column
        for column in range(len(columns))
        if rows and all(isinstance(row[column], int | float | None) for row in rows)
    )
    cells = [[line(value, cell) if isinstance(value, str) else number(value) for value in row] for row in rows[:shown]]
    return Table(line(caption, 300), list(columns), cells, numeric, folded, max(0, len(rows) - shown))
