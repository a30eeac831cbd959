"""Build the cards of the report, and sort verdicts for readers. A card is a box about one unit, or about several units
of a claim with equal results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.contract.schema import AnyClaim, AnyPart, parts_of
from harness.evidence.run_evidence import RunEvidence
from harness.judging.reasons import reason_of
from harness.judging.series import Compared
from harness.judging.sheet import some
from harness.judging.verdict import WORST_FIRST, Status, Verdict
from harness.kinds import kind_of
from harness.numbers import counted
from harness.report.advice import Advice, advice, split
from harness.report.charts import sparkline
from harness.report.deciding import Decided, decided
from harness.report.glance import Ratios, glance
from harness.report.headline import remedy_of
from harness.report.located import path_rows
from harness.report.text import clean, line, opening, rows, sentence, words
from harness.report.view import REPLAYED, ReportView
from harness.report.wording import reason_text, terms_in
from harness.run_directory.verdict_file import ClaimDrilled, drilled_claims

if TYPE_CHECKING:
    from markupsafe import Markup

    from harness.report.blocks import Section, Unit

_READING = (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE, Status.PASS, Status.NOT_RUN)
SIGNS = {"held": "✓", "violated": "✗", "undecided": "?", "not run": "–", "error": "!", "waived": "~"}


@dataclass(frozen=True)
class Seen:
    """The result of one unit (a claim on one workload)."""

    anchor: str
    unit: Unit
    workload: str
    message: str
    figures: dict[str, str]
    denominators: dict[str, str]
    waiver: str | None
    accepted: str | None
    tried: str | None
    links: list[tuple[str, str]]  # anchors and headings of the sections that show the evidence
    # For each part of the step up to the first one in which the arms differ: the name of the part, whether the arms are
    # equal in this part, and what differs.
    path: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Card:
    """Everything that the report shows about one unit, or about units of one claim that have the same result."""

    word: str  # one of: held, violated, undecided, not run, error, waived
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
    decided: tuple[str, ...] = ()  # the figures that decided the units, each once, with their confidence
    # Anchor and workload of another card that explains why this claim exists. None: this card contains the explanation.
    grounds: tuple[str, str] | None = None

    @property
    def sign(self) -> str:
        return SIGNS[self.word]

    @property
    def anchor(self) -> str:
        """Return the anchor of the card, which is the anchor of its first unit."""
        return self.units[0].anchor

    @property
    def links(self) -> bool:
        return any(unit.links for unit in self.units)

    @property
    def workloads(self) -> list[str]:
        return [unit.workload for unit in self.units]

    @property
    def figures(self) -> list[tuple[str, list[str]]]:
        """Return the name of each figure with its values, one for each workload."""
        return _rows([unit.figures for unit in self.units])

    @property
    def denominators(self) -> list[tuple[str, list[str]]]:
        return _rows([unit.denominators for unit in self.units])


def _rows(columns: list[dict[str, str]]) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name, "–") for column in columns]) for name in names]


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts in this order of their units: broken (ERROR), violated, undecided, not run, held.

    Verdicts with equal statuses keep the planned order.
    """
    return sorted(verdicts, key=lambda verdict: WORST_FIRST.index(verdict.status))


def cards(view: ReportView, sections: list[Section]) -> list[Card]:
    """Return the cards in this order: broken (ERROR), violated, undecided, held, not run. Cards with equal statuses
    keep the planned order.

    Each verdict has its own card, with one exception: units of one claim share a card if they held, or if they were not
    run for the same reason.
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
    """Keep the explanation why a claim exists only on the claim's first card. In its other cards, `grounds` refers to
    the first card."""
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
        accepted=accepted_line(view, verdict),
        tried=view.tried(verdict),
        links=_links(view, verdict, claim, places),
        path=path_rows(found) if found is not None else [],
    )
    return Card(
        word=view.word(verdict),
        status=verdict.status.value,
        contract=line(verdict.contract),
        claim=line(verdict.claim),
        mechanism=_mechanism(view, verdict),
        title=clean(claim.title, 400) if claim else "This claim is not in the contract any more.",
        reason=line(verdict.reason, 80),
        explanation=explanation(verdict.reason),
        why=_text_of(claim, "why"),
        if_fails=_text_of(claim, "if_fails"),
        causes=causes,
        further=[*_to_decide_alone(view, verdict), *further],
        upstream=_text_of(claim, "upstream"),
        owner=_owner(view, verdict.contract, claim),
        falsified_by=[line(name, 80) for name in claim.falsified_by] if claim else [],
        drill=_drill(view, verdict),
        units=[unit],
        decided=_figures(verdict),
    )


def _mechanism(view: ReportView, verdict: Verdict) -> str | None:
    """Return a phrase for the mechanism by which captured steps were replayed. Return None if a capture failed, or if
    the verdict has no mechanism."""
    runs = view.runs_of(verdict.contract, verdict.claim, verdict.workload)
    if verdict.mechanism is None or view.failed_captures([run.run_id for run in runs]):
        return None
    return line(REPLAYED.get(verdict.mechanism, verdict.mechanism))


def _to_decide_alone(view: ReportView, verdict: Verdict) -> Iterator[Advice]:
    """Yield advice that says what would decide an undecided unit. `advice` does not give this advice, because other
    outputs show it once for a group of such units."""
    if verdict.status is Status.INCONCLUSIVE and (remedy := remedy_of(verdict, view)):
        yield Advice("to decide", line(f"{remedy}.", 1000))


def _figures(verdict: Verdict) -> tuple[str, ...]:
    found = decided(verdict)
    if found is None:
        return ()
    return (", ".join(filter(None, (" ".join(filter(None, (found.text, found.name))), found.confidence))),)


def _links(
    view: ReportView, verdict: Verdict, claim: AnyClaim | None, places: list[tuple[str, str, set[str]]]
) -> list[tuple[str, str]]:
    """Return links from a unit's card to its evidence.

    If several parts of a section are about the unit's runs, only the first of these parts is linked.
    """
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
    """Return the meaning of a reason code as one line, or None if it is unknown."""
    known = reason_of(reason)
    return (known.explanation if known else None) or reason_text(reason).meaning


def _drill(view: ReportView, verdict: Verdict) -> list[str]:
    """Return the results of the drill for the claim, one phrase for each fault."""
    rows = view.drill.rows if view.drill is not None else []
    own = [row for row in rows if (row.contract, row.claim) == (verdict.contract, verdict.claim)]
    return [f"{line(row.fault, 80)}: {'killed' if row.killed else 'SURVIVED'}" for row in own]


def waiver_line(view: ReportView, verdict: Verdict) -> str | None:
    """Return owner, end date and reason of a unit's waiver, even if the waiver has expired. Return None without a
    waiver."""
    waiver = view.waiver(verdict) or view.expired_waiver(verdict)
    if waiver is None:
        return None
    owner, reason, expires = (line(text, 300) for text in (waiver.owner, waiver.reason, waiver.expires))
    if waiver.expired:
        return f"The waiver by {owner} ended with {expires}: {reason}"
    return f"Waived by {owner} until {expires}: {reason}"


def accepted_line(view: ReportView, verdict: Verdict) -> str | None:
    """Return a line about the accepted baseline of a unit's claim, or None if no baseline was accepted."""
    accepted = view.accepted(verdict)
    return None if accepted is None else f"Baseline: {line(accepted.line(), 600)}"


@dataclass(frozen=True)
class CardTerms:
    """The glossary terms of a card. `elsewhere`: the anchor of an earlier card that explains the same terms, or ""."""

    terms: dict[str, str]
    elsewhere: str = ""


def card_terms(cards: Iterable[Card]) -> dict[str, CardTerms]:
    """Return the terms of each card, by the anchor of its first unit. Cards without terms are left out."""
    first: dict[tuple[str, ...], str] = {}
    found = {}
    for card in cards:
        names = [name for name, _ in (*card.figures, *card.denominators)]
        if terms := terms_in(names):
            anchor = card.units[0].anchor
            explained = first.setdefault(tuple(terms), anchor)
            found[anchor] = CardTerms(terms) if explained == anchor else CardTerms({}, explained)
    return found


# The code below builds the table of claims at the top of a page. Each row shows what decided the claim, the confidence,
# and how many of its planted faults were killed.

TELLING = "trajectory_match"  # claims of this kind come first, because their curves show the most
WORST = ("error", "violated", "undecided", "waived", "held")  # the words for units that were executed, the worst first
MOST_ROWS = 30  # with more rows than this, the first screen leaves out units that held


@dataclass(frozen=True)
class ClaimRow:
    """Units of one claim with equal results, as a row of the table. to_decide: what would decide an undecided unit, or
    who signed a waiver."""

    contract: str
    word: str
    sign: str
    claim: str
    title: str
    workloads: tuple[tuple[str, str], ...]  # each workload with the anchor of its unit
    figure: str
    figure_name: str
    confidence: str
    faults: str
    to_decide: str
    spark: Markup | None

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts in which glossary terms may occur."""
        return self.figure, self.figure_name, self.confidence, self.faults

    @property
    def _alike(self) -> ClaimRow:
        return replace(self, workloads=(), spark=None)


def lead(view: ReportView) -> int | None:
    """Return the number of the unit with which a page begins, counted from 1. Return None if no unit was run.

    Units of claims with a surviving fault come first. Among the others, the unit with the worst status comes first. If
    several units have this status, units of the kind `TELLING` come first, and then the planned order decides.
    """
    survived = {(row.contract, row.claim) for row in view.drill.survivors} if view.drill and view.of_controls else ()

    def order(place: int) -> tuple[bool, int, bool]:
        unit, parts, _ = view.judged()[place - 1]
        lived = (unit.contract, unit.claim) in survived
        return not lived, WORST.index(view.word(unit)), all(part.kind != TELLING for part in parts)

    run = (place for place, unit in enumerate(view.verdicts, start=1) if unit.status is not Status.NOT_RUN)
    return min(run, key=order, default=None)


def claim_rows(view: ReportView) -> list[ClaimRow]:
    """Return a row for each unit that was run, the worst first. Units of one claim with equal texts share a row."""
    judged = [
        (verdict, _row(view, f"unit-{place}", verdict, parts, runs))
        for place, (verdict, parts, runs) in enumerate(view.judged(), start=1)
        if verdict.status is not Status.NOT_RUN
    ]
    rows: dict[tuple[str, ClaimRow], ClaimRow] = {}
    for verdict, row in sorted(judged, key=lambda each: WORST_FIRST.index(each[0].status)):
        key = (verdict.contract, row._alike)
        rows[key] = replace(rows[key], workloads=(*rows[key].workloads, *row.workloads)) if key in rows else row
    return list(rows.values())


def by_contract(view: ReportView, rows: Sequence[ClaimRow]) -> list[tuple[str, str, list[ClaimRow]]]:
    """Return for each contract its name, how many of its units held, and its rows. The worst contract comes first.

    If there are more than `MOST_ROWS` rows, the rows of units that held are left out. Cards show the same figures.
    Contracts without a row come last, with the reasons why no unit was run. Those with the same reasons form one entry.
    """
    grouped: dict[str, list[ClaimRow]] = {}
    for row in rows:
        grouped.setdefault(row.contract, []).append(row)
    units: dict[str, list[Verdict]] = {}
    for verdict in view.verdicts:
        units.setdefault(line(verdict.contract), []).append(verdict)
    left: dict[str, list[str]] = {}
    for name in [each for each in units if grouped and each not in grouped]:
        left.setdefault(some(list(dict.fromkeys(line(unit.message) for unit in units[name])), 1), []).append(name)
    return [
        (
            name,
            f"{sum(view.word(unit) == 'held' for unit in units[name])} of {counted(len(units[name]), 'unit')} held",
            [row for row in found if row.word != "held" or len(rows) <= MOST_ROWS],
        )
        for name, found in grouped.items()
    ] + [(", ".join(names), f"not run ({why})", []) for why, names in left.items()]


def _row(
    view: ReportView, anchor: str, verdict: Verdict, parts: Sequence[AnyPart], runs: Sequence[RunEvidence]
) -> ClaimRow:
    claim = view.claim(verdict.contract, verdict.claim)
    told = decided(verdict)
    said = view.word(verdict)
    return ClaimRow(
        contract=line(verdict.contract),
        word=said,
        sign=SIGNS[said],
        claim=line(verdict.claim, 80),
        title=clean(claim.title, 200) if claim else "This claim is not in the contract any more.",
        workloads=((line(verdict.workload, 60), anchor),),
        figure=told.text if told else opening(sentence(verdict.message), 240),
        figure_name=_figure_name(told, len(parts)),
        confidence=told.confidence if told else "",
        faults=faults_killed(view, verdict),
        to_decide=_to_decide(view, verdict, told=told is not None),
        spark=_spark(glance(view, verdict, parts, runs)),
    )


def _figure_name(told: Decided | None, parts: int) -> str:
    if told is None or parts < 2:
        return told.name if told else ""
    return ", ".join(word for word in (told.name, f"of {parts} parts") if word)


def _to_decide(view: ReportView, verdict: Verdict, *, told: bool) -> str:
    """Return what would decide an undecided unit, or the waiver of a unit that did not hold. Return "" for other units.

    told: True if the row already shows a figure. The text for an undecided unit then also has the judge's message.
    """
    signed = waiver_line(view, verdict) or ""
    if verdict.status is not Status.INCONCLUSIVE or view.waiver(verdict) is not None:
        return signed
    remedy = remedy_of(verdict, view)
    seen = [f"{sentence(verdict.message).rstrip('.')}."] if told else []
    return opening(" ".join([*filter(None, [signed]), *seen, *([f"To decide: {remedy}."] if remedy else [])]), 600)


def faults_of(view: ReportView, verdict: Verdict) -> ClaimDrilled | None:
    """Return the result of a claim's planted faults, from the drill that the page shows or, if the page shows none,
    from the last drill before the run. Return None if there is no result."""
    record = view.drill
    known = drilled_claims([record], record.contracts) if record is not None else view.header.drilled
    return next((one for one in known if (one.contract, one.claim) == (verdict.contract, verdict.claim)), None)


def faults_killed(view: ReportView, verdict: Verdict) -> str:
    """Return a phrase such as `3 of 4 faults killed`, or `no fault planted`."""
    found = faults_of(view, verdict)
    if found is None:
        return "no fault planted"
    killed = f"{found.killed} of {counted(found.planted, 'fault')} killed"
    return killed + (f", {found.not_run} not run" if found.not_run else "")


def _spark(found: Compared | Ratios | None) -> Markup | None:
    """Return a small image of the data from which a unit was judged, or None without such data.

    The image shows a dot for the ratio of each process, or the series of both arms.
    """
    if isinstance(found, Ratios):
        return sparkline.of_ratios(found.by_process, found.demanded)
    return None if found is None else sparkline.of_series(found.theirs, found.ours)
