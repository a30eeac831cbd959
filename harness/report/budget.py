"""Keep a page small enough to mail: decide what the report of a very large run leaves out, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from harness.report.blocks import Part, Section, Table

BYTES = 396_000  # of a page; a little below the 400 KB that a report may have
BYTES_OF_PARTS = 596_000  # of a page that several run directories share; it may have 600 KB
FRAME = 300  # bytes of the page around a plot, about
ROWS = 5  # of a folded table on a page that would be larger
# Whose plots go first: those whose tables say most of it. Only the plot lays timings over one time axis: it goes last.
ORDER = (
    "costs",
    "memory",
    "jit",
    "evaluation",
    "resume",
    "trajectories",
    "gradients",
    "seeds",
    "long_replay",
    "throughput",
)
NOT_DRAWN = "Not drawn, to keep the page small; a run narrowed with `--claim` or `--workload` has it."

Render = Callable[[Sequence[Section], bool], str]  # with True, cards of what held are brief


def page_within(size: int, sections: Sequence[Section], in_question: AbstractSet[str], render: Render) -> str:
    """Return the page of these sections, made smaller in four steps while it has more than `size` bytes.

    1. Folded tables keep `ROWS` rows. 2. Folded tables lose all rows, and cards of units that held leave out what the
    contract and `verdicts.json` say too. 3. Other tables lose their rows, the largest first: a plot says more. 4. Plots
    go in `ORDER`, the largest of a section first. Steps 2 and 3 spare parts made from runs `in_question`, those of
    units that did not hold; step 4 takes these parts last.
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
    surplus = len(page.encode()) - size
    if surplus > 0:
        page = render(_with_fewer_plots(sections, in_question, surplus), brief)
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


def _with_fewer_plots(sections: Sequence[Section], in_question: AbstractSet[str], surplus: int) -> list[Section]:
    """Return the sections without the plots of as many parts as it takes to save `surplus` bytes."""
    ranked = [
        (not in_question.isdisjoint(part.runs), ORDER.index(section.anchor), -_drawn(part), part)
        for section in sections
        for part in section.parts
        if part.plots or part.judged
    ]
    undrawn: set[int] = set()
    for *_, part in sorted(ranked, key=lambda item: item[:3]):
        if surplus <= 0:
            break
        undrawn.add(id(part))
        surplus -= _drawn(part) - len(NOT_DRAWN)
    return [
        replace(
            section,
            parts=[
                replace(part, plots=[], judged=[], text=[*part.text, NOT_DRAWN]) if id(part) in undrawn else part
                for part in section.parts
            ],
        )
        for section in sections
    ]


def _drawn(part: Part) -> int:
    """Return about how many bytes the plots of a part take, each with its frame."""
    plots = [*part.plots, *(each.plot for each in part.judged)]
    return sum(FRAME + len(plot.body.encode()) + len(plot.alt.encode()) for plot in plots)
