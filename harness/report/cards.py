"""Make the cards of the report, one for each unit or for units that ended alike, and sort verdicts for a reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.contract.claims import AnyClaim, parts_of
from harness.judging.reasons import reason_of
from harness.judging.verdict import WORST_FIRST, Status, Verdict
from harness.kinds import kind_of
from harness.report.advice import Advice, advice, split
from harness.report.deciding import decided
from harness.report.located import path_rows
from harness.report.text import clean, line, rows, sentence, words
from harness.report.view import REPLAYED, WORDS, ReportView
from harness.report.wording import reason_text, terms_in

if TYPE_CHECKING:
    from harness.report.blocks import Section, Unit


_READING = (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE, Status.PASS, Status.NOT_RUN)
SIGNS = {"held": "✓", "violated": "✗", "undecided": "?", "not run": "–", "error": "!", "waived": "~"}


@dataclass(frozen=True)
class Seen:
    """What one unit, a claim on one workload, showed."""

    anchor: str
    unit: Unit
    workload: str
    message: str
    figures: dict[str, str]
    denominators: dict[str, str]
    waiver: str | None
    tried: str | None
    links: list[tuple[str, str]]  # anchor and heading of the evidence
    path: list[tuple[str, str, str]]  # through the first step that differs: its part, the answer, what differs


@dataclass(frozen=True)
class Card:
    """Everything the report says of one unit; or of a claim's units on several workloads that ended alike."""

    word: str  # held, violated, undecided, not run, error, waived
    status: str
    contract: str
    claim: str
    mechanism: str | None
    title: str
    reason: str
    explanation: str | None
    why: str | None
    if_fails: str | None
    causes: list[Advice]
    further: list[Advice]
    upstream: str | None
    owner: str | None
    falsified_by: list[str]
    drill: list[str]
    units: list[Seen]
    decided: tuple[str, ...] = ()  # the deciding figures of its units and how sure each is, each once
    grounds: tuple[str, str] | None = None  # anchor and workload of the card that has this claim's why; None: this one

    @property
    def sign(self) -> str:
        return SIGNS[self.word]

    @property
    def anchor(self) -> str:
        """Return the anchor of the card's first unit: the card has none of its own."""
        return self.units[0].anchor

    @property
    def links(self) -> bool:
        return any(unit.links for unit in self.units)

    @property
    def workloads(self) -> list[str]:
        return [unit.workload for unit in self.units]

    @property
    def figures(self) -> list[tuple[str, list[str]]]:
        """Return each figure's name, with its value on each workload."""
        return _rows([unit.figures for unit in self.units])

    @property
    def denominators(self) -> list[tuple[str, list[str]]]:
        return _rows([unit.denominators for unit in self.units])


def _rows(columns: list[dict[str, str]]) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name, "–") for column in columns]) for name in names]


def word(view: ReportView, verdict: Verdict) -> str:
    """Return the word that the count line uses for a verdict, such as `held` or `waived`."""
    return "waived" if view.waiver(verdict) else WORDS[verdict.status]


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Sort verdicts as a reader needs them: broken, violated, undecided, not run, held; within each as planned."""
    return sorted(verdicts, key=lambda verdict: WORST_FIRST.index(verdict.status))


def cards(view: ReportView, sections: list[Section]) -> list[Card]:
    """Return a card for every verdict: broken, violated, undecided, held, then not run; within each as planned.

    A claim that held, or was not run, on several workloads for one reason has one card for all of them.
    """
    places = [
        (f"{section.anchor}-{at}", section.title, set(part.runs))
        for section in sections
        for at, part in enumerate(section.parts, start=1)
    ]
    groups: dict[tuple[str | None, ...], Card] = {}
    for at, verdict in enumerate(view.verdicts, start=1):
        card = _card(view, verdict, f"unit-{at}", places)
        alone = verdict.status not in {Status.PASS, Status.NOT_RUN}
        key = (card.contract, card.claim, card.status, card.reason, card.mechanism, f"unit-{at}" if alone else None)
        if key in groups:
            told = dict.fromkeys([*groups[key].decided, *card.decided])
            card = replace(groups[key], units=[*groups[key].units, *card.units], decided=tuple(told))
        groups[key] = card
    return _grounded_once(sorted(groups.values(), key=lambda card: _READING.index(Status(card.status))))


def _grounded_once(ordered: list[Card]) -> list[Card]:
    """Leave a claim's grounds on its first card only; its other cards lead there."""
    first: dict[tuple[str, str], Seen] = {}
    kept = []
    for card in ordered:
        unit = first.setdefault((card.contract, card.claim), card.units[0])
        kept.append(card if unit is card.units[0] else replace(card, grounds=(unit.anchor, unit.workload)))
    return kept


def _card(view: ReportView, verdict: Verdict, anchor: str, places: list[tuple[str, str, set[str]]]) -> Card:
    claim = view.claim(verdict.contract, verdict.claim)
    causes, further = split(advice(view, verdict))
    found = view.located.get((verdict.contract, verdict.claim, verdict.workload))
    unit = Seen(
        anchor=anchor,
        unit=(verdict.contract, verdict.claim, verdict.workload),
        workload=line(verdict.workload),
        message=sentence(clean(verdict.message, 1200)),
        figures=dict(rows(verdict.figures)),
        denominators={words(name): f"{value:,}" for name, value in verdict.denominators.items()},
        waiver=waiver_line(view, verdict),
        tried=view.tried(verdict),
        links=_links(view, verdict, claim, places),
        path=path_rows(found) if found is not None else [],
    )
    return Card(
        word=word(view, verdict),
        status=verdict.status.value,
        contract=line(verdict.contract),
        claim=line(verdict.claim),
        mechanism=line(REPLAYED.get(verdict.mechanism, verdict.mechanism)) if verdict.mechanism else None,
        title=clean(claim.title, 400) if claim else "This claim is not in the contract any more.",
        reason=line(verdict.reason, 80),
        explanation=explanation(verdict.reason),
        why=_text_of(claim, "why"),
        if_fails=_text_of(claim, "if_fails"),
        causes=causes,
        further=further,
        upstream=_text_of(claim, "upstream"),
        owner=_owner(view, verdict.contract, claim),
        falsified_by=[line(name, 80) for name in claim.falsified_by] if claim else [],
        drill=_drill(view, verdict),
        units=[unit],
        decided=_figures(verdict),
    )


def _figures(verdict: Verdict) -> tuple[str, ...]:
    found = decided(verdict)
    return (", ".join(filter(None, (found.text, found.name, found.confidence))),) if found else ()


def _links(
    view: ReportView, verdict: Verdict, claim: AnyClaim | None, places: list[tuple[str, str, set[str]]]
) -> list[tuple[str, str]]:
    """Return links to the evidence that the unit's kinds are judged from: the first place in each section."""
    runs = {run.run_id for run in view.runs_of(verdict.contract, verdict.claim, verdict.workload)}
    wanted = {"broke"}.union(*(kind_of(part.kind).card for part in (parts_of(claim) if claim else [])))
    found: dict[str, str] = {}
    for place, title, made_from in places:
        if made_from & runs and place.rpartition("-")[0] in wanted:
            found.setdefault(title, place)
    return [(place, title) for title, place in found.items()]


def _text_of(claim: AnyClaim | None, field: str) -> str | None:
    text = getattr(claim, field, None)
    return clean(text, 4000) if text else None


def _owner(view: ReportView, contract: str, claim: AnyClaim | None) -> str | None:
    known = view.contract(contract)
    owner = known.owner_of(claim) if known is not None and claim is not None else None
    return line(owner, 300) if owner else None


def explanation(reason: str) -> str | None:
    """Return what a reason code means, in one line."""
    known = reason_of(reason)
    return (known.explanation if known else None) or reason_text(reason).meaning


def _drill(view: ReportView, verdict: Verdict) -> list[str]:
    """Return the drill's results for the claim, one phrase for each fault."""
    rows = view.drill.rows if view.drill is not None else []
    own = [row for row in rows if (row.contract, row.claim) == (verdict.contract, verdict.claim)]
    return [f"{line(row.fault, 80)}: {'killed' if row.killed else 'SURVIVED'}" for row in own]


def waiver_line(view: ReportView, verdict: Verdict) -> str | None:
    """Return who signed for a violated unit, until when and why, also after that date; None without a waiver."""
    waiver = view.waiver(verdict) or view.expired_waiver(verdict)
    if waiver is None:
        return None
    owner, reason, expires = (line(text, 300) for text in (waiver.owner, waiver.reason, waiver.expires))
    if waiver.expired:
        return f"The waiver by {owner} ended with {expires}: {reason}"
    return f"Waived by {owner} until {expires}: {reason}"


@dataclass(frozen=True)
class CardTerms:
    """The terms of a card; `elsewhere` is the anchor of the card that explains them, empty for this one."""

    terms: dict[str, str]
    elsewhere: str = ""


def card_terms(cards: Iterable[Card]) -> dict[str, CardTerms]:
    """Return the terms of each card by the anchor of its first unit; a card without a term is left out."""
    first: dict[tuple[str, ...], str] = {}
    found = {}
    for card in cards:
        names = [name for name, _ in (*card.figures, *card.denominators)]
        if terms := terms_in(names):
            anchor = card.units[0].anchor
            explained = first.setdefault(tuple(terms), anchor)
            found[anchor] = CardTerms(terms) if explained == anchor else CardTerms({}, explained)
    return found
