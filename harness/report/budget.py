"""Keep a page small enough to mail: decide what the report of a very large run leaves out, and in which order.

Rows of tables and words that stand elsewhere, too, are left out. Plots never are: a page of many has more bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from harness.report.blocks import Section, Table

BYTES = 396_000  # of a page; a little below the 400 KB that a report may have
BYTES_OF_PARTS = 596_000  # of a page that several run directories share; it may have 600 KB
ROWS = 5  # of a folded table on a page that would be larger
Render = Callable[[Sequence[Section], bool], str]  # with True, cards of what held are brief


def page_within(size: int, sections: Sequence[Section], in_question: AbstractSet[str], render: Render) -> str:
    """Return the page of these sections, made smaller in three steps while it has more than `size` bytes.

    1. Folded tables keep `ROWS` rows. 2. Folded tables lose all rows, and cards of units that held leave out what the
    contract and `verdicts.json` say too. 3. Other tables lose their rows, the largest first: a plot says more. Steps 2
    and 3 spare parts made from runs `in_question`, those of units that did not hold.
    """
    page, brief = render(sections, False), False
    if len(page.encode()) > size:
        sections = _cut_to(ROWS, sections, set())
        page = render(sections, False)
    if len(page.encode()) > size:
        sections, brief = _cut_to(0, sections, in_question), True
        page = render(sections, brief)
    surplus = len(page.encode()) - size
    if surplus > 0:
        sections = _with_fewer_rows(sections, in_question, surplus)
        page = render(sections, brief)
    return page


def _cut_to(rows: int, sections: Sequence[Section], spared: AbstractSet[str]) -> list[Section]:
    """Return the sections with at most `rows` rows in a folded table, except in parts made from the spared runs."""
    return [
        replace(
            section,
            parts=[
                part
                if part.runs and not spared.isdisjoint(part.runs)
                else replace(part, tables=[_cut(table, rows) if table.folded else table for table in part.tables])
                for part in section.parts
            ],
        )
        for section in sections
    ]


def _cut(table: Table, rows: int) -> Table:
    return replace(table, rows=table.rows[:rows], left_out=table.left_out + max(0, len(table.rows) - rows))


def _with_fewer_rows(sections: Sequence[Section], in_question: AbstractSet[str], surplus: int) -> list[Section]:
    """Return the sections with tables of units that held emptied, the largest first, to save `surplus` bytes."""
    held = [part for section in sections for part in section.parts if in_question.isdisjoint(part.runs) and part.runs]
    emptied: set[int] = set()
    for table in sorted((table for part in held for table in part.tables), key=_written, reverse=True):
        if surplus <= 0:
            break
        emptied.add(id(table))
        surplus -= _written(table)
    return [
        replace(
            section,
            parts=[
                replace(part, tables=[_cut(one, 0) if id(one) in emptied else one for one in part.tables])
                for part in section.parts
            ],
        )
        for section in sections
    ]


def _written(table: Table) -> int:
    """Return about how many bytes a table takes: each cell and row has tags around it, and the table a frame."""
    return 250 + sum(10 + sum(9 + len(cell.encode()) for cell in row) for row in table.rows)
