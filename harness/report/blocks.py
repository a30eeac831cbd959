"""Define the building blocks of report sections. The template knows these blocks and nothing about evidence."""

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
    """A table with a caption. numeric: the right-aligned columns. folded: True if the table is collapsed at first.

    The style sheet has rules for only the first ten columns.
    """

    caption: str
    columns: list[str]
    rows: list[list[str]]
    numeric: frozenset[int] = frozenset()
    folded: bool = False
    left_out: int = 0
    links: tuple[str | None, ...] = ()  # for each row, the address to which its first cell links, or None


@dataclass(frozen=True)
class JudgedPlot:
    """A plot of the data from which units were judged. The first card of one of these units shows the plot."""

    plot: Plot
    units: frozenset[Unit]


@dataclass(frozen=True)
class Part:
    """One observation: sentences, plots, tables and a verbatim listing under a heading.

    `plots`: plots of data that decides nothing. `judged`: plots of data that decides units. `drawn_with`: anchor and
    title of each card to which a judged plot was moved.
    """

    title: str
    text: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # ids of the runs that this part shows
    listing: str = ""
    judged: list[JudgedPlot] = field(default_factory=list)
    drawn_with: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading. `lead` explains how to read it. A `folded` section shows only its lead."""

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
    """Return a table of any values: numbers formatted and right-aligned, texts shortened, rows capped and counted.

    cell: maximum characters of a text in a cell; raise it for sentences and lists that must be complete.
    """
    numeric = frozenset(
        column
        for column in range(len(columns))
        if rows and all(isinstance(row[column], int | float | None) for row in rows)
    )
    cells = [[line(value, cell) if isinstance(value, str) else number(value) for value in row] for row in rows[:shown]]
    return Table(line(caption, 300), list(columns), cells, numeric, folded, max(0, len(rows) - shown))
