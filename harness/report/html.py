"""Render the report as one HTML file. The file loads nothing else, and is complete even without its script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from harness.judging.verdict import Status
from harness.kinds.built_in import SECTIONS
from harness.kinds.row import imported
from harness.report import cards as unit_cards
from harness.report import first_screen
from harness.report.advice import repeats
from harness.report.blocks import Part, Section, Table
from harness.report.cards import Card, by_contract, card_terms, claim_rows
from harness.report.charts.svg import Plot
from harness.report.headline import headline, not_run, not_whole
from harness.report.page import render_page
from harness.report.sections import closing, costs, kill_matrix
from harness.report.text import clean, line
from harness.report.together import DIFFERS, notes, of_each_part, rows
from harness.report.view import ReportView
from harness.report.wording import terms_in

# The code below keeps a page small enough for mail. It decides what a very large report leaves out, and in which order.
#
# Two things can be left out: rows of tables, and texts that are also in other files of the run directory. Plots are
# never left out, so a page with many plots can exceed the limit.

BYTES = 396_000  # target size of a page in bytes, just below the limit of 400 KB
BYTES_OF_PARTS = 596_000  # target size of a page about several run directories in bytes, just below the limit of 600 KB
ROWS = 5  # number of rows that a folded table keeps if the page is too large
# A function that renders sections. Its second argument is True if the cards of units that held must be short.
Render = Callable[[Sequence[Section], bool], str]


def page_within(size: int, sections: Sequence[Section], in_question: AbstractSet[str], render: Render) -> str:
    """Return the page of these sections. If it has more than `size` bytes, shrink it in up to three steps.

    1. Folded tables keep `ROWS` rows. 2. Folded tables lose all rows, and cards of units that held leave out texts that
    are also in the contract and in `verdicts.json`. 3. Other tables lose their rows, the largest table first. Steps 2
    and 3 keep the tables about runs of units that did not hold (`in_question`).
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
    """Return the sections with at most `rows` rows in each folded table.

    The parts about runs in `spared` are not changed.
    """
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
    """Return the sections without the rows of some tables. Tables about runs in `in_question`, and tables of parts that
    name no run, keep their rows. The largest tables are emptied first, until `surplus` bytes are saved.
    """
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
    """Return an estimate of the bytes of a table in HTML, with the tags of the table, its rows and its cells."""
    return 250 + sum(10 + sum(9 + len(cell.encode()) for cell in row) for row in table.rows)


FEW_CARDS = 4  # with at most this number of cards, the cards of units that held are open too
_OF_KINDS = tuple(imported(name) for name in SECTIONS)


def render(view: ReportView) -> str:
    """Return the whole report as one HTML page that needs no other file. Equal views give equal bytes."""
    sections = evidence(view)
    rows, cards = claim_rows(view), unit_cards.cards(view, sections)
    values: dict[str, Any] = {
        "title": _title(view),
        "notices": [(title, clean(text, 3000)) for title, text in view.notices()],
        "is_drill": view.is_drill,
        "now": first_screen.now(view),
        "claimed": first_screen.claimed(view, rows),
        "headline": headline(view),
        "gate": first_screen.gate_words(view),
        # If the run is not complete, do not show how many units held. The number would suggest that something is
        # proven.
        "count_line": "" if not_whole(view) else view.count_line(),
        "claims": len({(verdict.contract, verdict.claim) for verdict in view.verdicts}),
        "contracts": [(line(item.id), clean(item.title, 400)) for item in view.contracts],
        "parts": _parts(view),
        "notes": [clean(note, 1000) for note in notes(view)],
        "subject": first_screen.subject(view),
        "details": first_screen.details(view),
        "machine": of_each_part(view, first_screen.machine),
        "jobs": first_screen.ci_jobs(view),
        "course": first_screen.course(view),
        "rows": rows,
        "contract_rows": by_contract(view, rows),
        "not_run": not_run(view),
        "terms": terms_in(text for row in rows for text in row.texts),
        "cards": cards,
        "few_cards": FEW_CARDS,
        "card_terms": card_terms(cards),
        "kill_matrix": kill_matrix.kill_matrix(view),
        "environment": closing.environment(view),
        "command": repeats(view),
    }
    return page_within(
        BYTES_OF_PARTS if view.parts else BYTES,
        sections,
        _in_question(view),
        lambda sections, brief: _page(sections, brief=brief, **values),
    )


def _page(sections: Sequence[Section], *, cards: Sequence[unit_cards.Card], **values: Any) -> str:
    """Return the page of these sections. A plot of data that decided a unit is in the card of this unit."""
    found = placed(sections, cards)
    drawn = [figure.plot for figures in found.figures.values() for figure in figures if figure.plot is not None]
    return render_page("report.html.j2", found.sections, drawn, cards=cards, figures=found.figures, **values)


def _in_question(view: ReportView) -> set[str]:
    """Return the ids of the runs of units that did not hold."""
    units = [item for item in view.verdicts if item.status is not Status.PASS]
    return {seen.run_id for item in units for seen in view.runs_of(item.contract, item.claim, item.workload)}


def evidence(view: ReportView) -> list[Section]:
    """Return the sections for the available evidence, in their order on the page."""
    drawn = [closing.unchecked(view), closing.deaths(view), *_of_kinds(view), costs.section(view)]
    return [_with_failed_captures(view, section) for section in drawn if section is not None]


def _with_failed_captures(view: ReportView, section: Section) -> Section:
    """Return the section, with one more sentence in each part for every arm whose capture failed in the part's runs."""
    parts = [replace(part, text=[*view.failed_captures(part.runs), *part.text]) for part in section.parts]
    return replace(section, parts=parts)


def _of_kinds(view: ReportView) -> Iterator[Section | None]:
    """Call each section function that a claim kind names. Yield the sections that these functions return."""
    for section in _OF_KINDS:
        drawn = section(view)
        yield from drawn if isinstance(drawn, list) else [drawn]


def _parts(view: ReportView) -> Table | None:
    """Return a table of the run directories with machine, commit and link to the page; None for a single directory."""
    if not view.parts:
        return None
    names, cells = rows(view)
    caption = f"{len(cells)} parts, their machines and commits; “{DIFFERS.strip()}” marks what most do not share"
    return Table(caption, names, cells, folded=True, links=tuple(part.page for part in view.parts))


def _title(view: ReportView) -> str:
    names = ", ".join(line(contract.id, 60) for contract in view.contracts[:3])
    more = f" and {len(view.contracts) - 3} more" if len(view.contracts) > 3 else ""
    return f"{'FIRE DRILL · ' if view.is_drill else ''}{headline(view).word} · {names or 'no contract'}{more}"


@dataclass(frozen=True)
class Figure:
    """A plot in a card, or a link to the plot if `plot` is None."""

    anchor: str
    title: str
    plot: Plot | None = None


@dataclass(frozen=True)
class Placed:
    """The sections without the judged plots, and the plots of each card, by the anchor of the card's first unit."""

    sections: list[Section]
    figures: dict[str, list[Figure]] = field(default_factory=dict)


def placed(sections: Sequence[Section], cards: Sequence[Card]) -> Placed:
    """Move every plot of judged data to the first card of a unit that was judged from this data. Other cards of such
    units get a link to the plot. If there is no such card, leave the plot in its section.
    """
    figures: dict[str, list[Figure]] = {}
    number = 0
    left: list[Section] = []
    for section in sections:
        parts: list[Part] = []
        for part in section.parts:
            plots, drawn_with = list(part.plots), dict[str, str]()
            for each in part.judged:
                having = [card for card in cards if any(unit.unit in each.units for unit in card.units)]
                if not having:
                    plots.append(each.plot)
                    continue
                number += 1
                anchor, first = f"plot-{number}", having[0]
                of = ", ".join(unit.workload for unit in first.units if unit.unit in each.units)
                title = f"{section.title}, {of}"
                figures.setdefault(first.anchor, []).append(Figure(anchor, title, each.plot))
                for card in having[1:]:
                    where = f"{title}, with {first.claim}"
                    figures.setdefault(card.anchor, []).append(Figure(anchor, where))
                drawn_with.setdefault(first.anchor, first.claim)
            parts.append(replace(part, plots=plots, judged=[], drawn_with=list(drawn_with.items())))
        left.append(replace(section, parts=parts))
    return Placed(left, figures)
