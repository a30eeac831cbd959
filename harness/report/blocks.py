"""Define what a section of the report is built of. The template knows these shapes and nothing about evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.report.charts.svg import Plot
from harness.report.text import line, number

ROWS_SHOWN = 100
CELL = 160
Unit = tuple[str, str, str]  # contract, claim, workload


@dataclass(frozen=True)
class Table:
    """A table with a caption. `numeric` names the columns set right-aligned; `folded` hides it until asked for.

    The style knows the first ten columns.
    """

    caption: str
    columns: list[str]
    rows: list[list[str]]
    numeric: frozenset[int] = frozenset()
    folded: bool = False
    left_out: int = 0
    links: tuple[str | None, ...] = ()  # of the rows, where their first cells lead


@dataclass(frozen=True)
class JudgedPlot:
    """A plot that units are judged by: it stands in the card of one of them."""

    plot: Plot
    units: frozenset[Unit]


@dataclass(frozen=True)
class Part:
    """One thing seen: sentences, plots, tables and a verbatim listing under a heading.

    `plots` are those that no claim judges; `drawn_with` has the anchor and the title of each card with a plot of it.
    """

    title: str
    text: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # ids of the runs it was made from
    listing: str = ""
    judged: list[JudgedPlot] = field(default_factory=list)
    drawn_with: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading of its own; `lead` says how to read it, and unfolds it where `folded`."""

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

    cell: characters of a text; more where a cell holds a sentence or a list that must be read whole.
    """
    numeric = frozenset(
        column
        for column in range(len(columns))
        if rows and all(isinstance(row[column], int | float | None) for row in rows)
    )
    cells = [[line(value, cell) if isinstance(value, str) else number(value) for value in row] for row in rows[:shown]]
    return Table(line(caption, 300), list(columns), cells, numeric, folded, max(0, len(rows) - shown))
