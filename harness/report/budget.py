"""A page that can be mailed: what the report of a very large run leaves out, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from harness.report.blocks import Part, Section, Table

BYTES = 396_000  # of a page; a little below the 400 KB that a report may have
ROWS = 5  # of a folded table on a page that would be larger
# Whose plots go first: those whose tables say most of it. Only the plot lays timings over one time axis: it goes last.
ORDER = ("costs", "memory", "jit", "trajectories", "gradients", "throughput")
NOT_DRAWN = "Not drawn, to keep the page small; a run narrowed with `--claim` or `--workload` has it."

Render = Callable[[Sequence[Section]], str]


def page_within(size: int, sections: Sequence[Section], in_question: AbstractSet[str], render: Render) -> str:
    """The page of these sections, made smaller if it has more than `size` bytes.

    First the folded tables are cut short; then plots go, by `ORDER` and the largest of a section first, those made from
    the runs `in_question`, of units that did not hold, after all others.
    """
    page = render(sections)
    if len(page.encode()) > size:
        sections = [replace(section, parts=[_short(part) for part in section.parts]) for section in sections]
        page = render(sections)
    surplus = len(page.encode()) - size
    if surplus > 0:
        page = render(_with_fewer_plots(sections, in_question, surplus))
    return page


def _short(part: Part) -> Part:
    return replace(part, tables=[_cut(table) if table.folded else table for table in part.tables])


def _cut(table: Table) -> Table:
    return replace(table, rows=table.rows[:ROWS], left_out=table.left_out + max(0, len(table.rows) - ROWS))


def _with_fewer_plots(sections: Sequence[Section], in_question: AbstractSet[str], surplus: int) -> list[Section]:
    """Without the plots of as many parts as it takes to save so many bytes."""
    ranked = [
        (not in_question.isdisjoint(part.runs), ORDER.index(section.anchor), -_drawn(part), part)
        for section in sections
        for part in section.parts
        if part.plots
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
                replace(part, plots=[], text=[*part.text, NOT_DRAWN]) if id(part) in undrawn else part
                for part in section.parts
            ],
        )
        for section in sections
    ]


def _drawn(part: Part) -> int:
    """Bytes of a part's plots."""
    return sum(len(plot.body.encode()) + len(plot.alt.encode()) for plot in part.plots)
