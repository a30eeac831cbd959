"""Make a row for each claim of a page: what decided it, how sure that is, and how many of its faults were killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.contract.claims import AnyPart
from harness.evidence.run_evidence import RunEvidence
from harness.judging.compared_series import Compared
from harness.judging.verdict import WORST_FIRST, Status, Verdict
from harness.report.cards import SIGNS, waiver_line, word
from harness.report.charts import sparkline
from harness.report.deciding import Decided, decided
from harness.report.glance import Ratios, glance
from harness.report.headline import remedy_of
from harness.report.text import clean, line, opening, sentence
from harness.report.view import ReportView
from harness.run_directory.drill_record import drilled_claims

if TYPE_CHECKING:
    from markupsafe import Markup


MOST_ROWS = 30  # of a first screen that has one for each unit


@dataclass(frozen=True)
class ClaimRow:
    """One claim on one workload, or on several that ended alike; `to_decide`: what would decide an undecided one."""

    contract: str
    word: str
    sign: str
    claim: str
    title: str
    workloads: tuple[tuple[str, str], ...]  # with the anchor of each
    figure: str
    figure_name: str
    confidence: str
    faults: str
    to_decide: str
    spark: Markup | None

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the cells that may hold a word that needs an explanation."""
        return self.figure, self.figure_name, self.confidence, self.faults

    @property
    def _alike(self) -> ClaimRow:
        return replace(self, workloads=(), spark=None)


def claim_rows(view: ReportView) -> list[ClaimRow]:
    """Return a row for each unit that was run, the worst first; units of a claim that say the same share a row."""
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
    """Return the rows of each contract, with its name and how many of its units held; the worst contract first.

    Of many rows, those of units that held are left out: each has its line among the cards, with the same figure.
    """
    grouped: dict[str, list[ClaimRow]] = {}
    for row in rows:
        grouped.setdefault(row.contract, []).append(row)
    units = [(line(verdict.contract), word(view, verdict)) for verdict in view.verdicts]
    shares = {name: [said == "held" for contract, said in units if contract == name] for name in grouped}
    return [
        (
            name,
            f"{sum(shares[name])} of {len(shares[name])} held",
            [row for row in found if row.word != "held" or len(rows) <= MOST_ROWS],
        )
        for name, found in grouped.items()
    ]


def _row(
    view: ReportView, anchor: str, verdict: Verdict, parts: Sequence[AnyPart], runs: Sequence[RunEvidence]
) -> ClaimRow:
    claim = view.claim(verdict.contract, verdict.claim)
    told = decided(verdict)
    said = word(view, verdict)
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
    """Return what would decide an undecided unit, or who signed for one that did not hold.

    If the row of an undecided unit shows a figure, the judge's message comes first.
    """
    signed = waiver_line(view, verdict) or ""
    if verdict.status is not Status.INCONCLUSIVE or view.waiver(verdict) is not None:
        return signed
    remedy = remedy_of(verdict, view)
    seen = [f"{sentence(verdict.message).rstrip('.')}."] if told else []
    return opening(" ".join([*filter(None, [signed]), *seen, *([f"To decide: {remedy}."] if remedy else [])]), 600)


def faults_killed(view: ReportView, verdict: Verdict) -> str:
    """Return `3 of 4 killed`, by the page's drill or by the last drill found next to the run; else `none planted`."""
    unit = (verdict.contract, verdict.claim)
    record = view.drill
    known = drilled_claims([record], record.contracts) if record is not None else view.header.drilled
    found = next((one for one in known if (one.contract, one.claim) == unit), None)
    if found is None:
        return "none planted"
    return f"{found.killed} of {found.planted} killed" + (f", {found.not_run} not run" if found.not_run else "")


def _spark(found: Compared | Ratios | None) -> Markup | None:
    """Draw what was judged: a dot for the ratio of each process, or both series; None without either."""
    if isinstance(found, Ratios):
        return sparkline.of_ratios(found.by_process, found.demanded)
    return None if found is None else sparkline.of_series(found.theirs, found.ours)
