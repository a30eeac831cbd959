"""Render the report: one HTML file without outside requests, complete without its one script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.judging.verdict import Status
from harness.kinds.built_in import SECTIONS
from harness.kinds.row import imported
from harness.report import cards as unit_cards
from harness.report import first_screen
from harness.report.blocks import Part, Section, Table
from harness.report.budget import BYTES, BYTES_OF_PARTS, page_within
from harness.report.cards import Card, card_terms
from harness.report.charts.svg import Plot
from harness.report.claim_rows import by_contract, claim_rows
from harness.report.commands import repeats
from harness.report.headline import headline, not_run
from harness.report.page import render_page
from harness.report.run_parts import DIFFERS, notes, of_each_part, rows
from harness.report.sections import closing, costs, kill_matrix
from harness.report.text import clean, line
from harness.report.view import ReportView
from harness.report.wording import terms_in

FEW_CARDS = 4  # of a page on which cards of what held are open
_OF_KINDS = tuple(imported(name) for name in SECTIONS)


def render(view: ReportView) -> str:
    """Return the whole report of a view as a self-contained HTML page. Pure: equal views give equal bytes."""
    sections = evidence(view)
    rows, cards = claim_rows(view), unit_cards.cards(view, sections)
    values: dict[str, Any] = {
        "title": _title(view),
        "notices": [(title, clean(text, 3000)) for title, text in view.notices()],
        "is_drill": view.is_drill,
        "now": first_screen.now(view),
        "headline": headline(view),
        "gate": view.gate,
        "count_line": view.count_line(),
        "contracts": [(line(item.id), clean(item.title, 400)) for item in view.contracts],
        "parts": _parts(view),
        "notes": [clean(note, 1000) for note in notes(view)],
        "identity": first_screen.identity(view),
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
    """Return the page of these sections, with each judged plot in a card."""
    found = placed(sections, cards)
    drawn = [figure.plot for figures in found.figures.values() for figure in figures if figure.plot is not None]
    return render_page("report.html.j2", found.sections, drawn, cards=cards, figures=found.figures, **values)


def _in_question(view: ReportView) -> set[str]:
    """Return the ids of the runs of units that did not hold."""
    units = [item for item in view.verdicts if item.status is not Status.PASS]
    return {seen.run_id for item in units for seen in view.runs_of(item.contract, item.claim, item.workload)}


def evidence(view: ReportView) -> list[Section]:
    """Return the sections of the evidence that there is, in reading order."""
    drawn = [closing.unchecked(view), closing.deaths(view), *_of_kinds(view), costs.section(view)]
    return [section for section in drawn if section is not None]


def _of_kinds(view: ReportView) -> Iterator[Section | None]:
    """Yield what each section of the table of kinds draws: one section, several, or none."""
    for section in _OF_KINDS:
        drawn = section(view)
        yield from drawn if isinstance(drawn, list) else [drawn]


def _parts(view: ReportView) -> Table | None:
    """Return a table of machines and commits of several run directories, with links to their pages; None for one."""
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
    """A plot in a card, or, with `plot` None, a link to where it stands."""

    anchor: str
    title: str
    plot: Plot | None = None


@dataclass(frozen=True)
class Placed:
    """Sections without the plots that cards have, and the figures of each card by the anchor of its first unit."""

    sections: list[Section]
    figures: dict[str, list[Figure]] = field(default_factory=dict)


def placed(sections: Sequence[Section], cards: Sequence[Card]) -> Placed:
    """Move every judged plot to the first card that has a unit of it; without such a card it stays in its section."""
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
