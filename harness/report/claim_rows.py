"""Make a row for each claim of a page: what decided it, how sure that is, and how many of its faults were killed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.contract.base import Judged
from harness.contract.claims import CompositeClaim, part_names
from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import WORST_FIRST, Figure, Status, Verdict
from harness.kinds import kind_of
from harness.report.cards import SIGNS, word
from harness.report.charts import sparkline
from harness.report.charts.decimate import Doubles
from harness.report.deciding import Decided, decided
from harness.report.headline import remedy_of
from harness.report.text import clean, line, sentence
from harness.report.view import ReportView
from harness.run_directory.drill_record import drilled_claims

if TYPE_CHECKING:
    from markupsafe import Markup

# Sections whose claims are about the course of a training: a small image of it tells something of them.
_COURSES = {"trajectories", "seeds", "long_replay", "evaluation", "steps", "step_accuracy"}


@dataclass(frozen=True)
class ClaimRow:
    """One claim on one workload, or on several that ended alike; `to_decide`: what would decide an undecided one."""

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


def _row(
    view: ReportView, anchor: str, verdict: Verdict, parts: Sequence[Judged], runs: Sequence[RunEvidence]
) -> ClaimRow:
    claim = view.claim(verdict.contract, verdict.claim)
    named = list(_named_parts(view, verdict, parts))
    told = decided(verdict)
    said = word(view, verdict)
    return ClaimRow(
        word=said,
        sign=SIGNS[said],
        claim=line(verdict.claim, 80),
        title=clean(claim.title, 200) if claim else "This claim is not in the contract any more.",
        workloads=((line(verdict.workload, 60), anchor),),
        figure=told.text if told else line(sentence(verdict.message), 160),
        figure_name=_figure_name(told, len(parts)),
        confidence=told.confidence if told else "",
        faults=faults_killed(view, verdict),
        to_decide=_to_decide(view, verdict, told=told is not None),
        spark=_spark(verdict, named, runs),
    )


def _named_parts(view: ReportView, verdict: Verdict, parts: Sequence[Judged]) -> Iterator[tuple[Judged, str]]:
    """Yield each part with the prefix of its figures' names; in a composite claim the worst part comes first."""
    claim = view.claim(verdict.contract, verdict.claim)
    if not isinstance(claim, CompositeClaim):
        yield from ((part, "") for part in parts)
        return
    named = [(part, f"{name}.") for part, name in zip(parts, part_names(claim), strict=True)]
    yield from sorted(named, key=lambda each: WORST_FIRST.index(_status_of(verdict, each[1])))


def _status_of(verdict: Verdict, prefix: str) -> Status:
    """Return the status of one part of the verdict's claim."""
    figure = verdict.figures.get(f"{prefix}status")
    return Status(str(figure.value)) if figure is not None else verdict.status


def _figure_name(told: Decided | None, parts: int) -> str:
    if told is None or parts < 2:
        return told.name if told else ""
    return ", ".join(word for word in (told.name, f"of {parts} parts") if word)


def _to_decide(view: ReportView, verdict: Verdict, *, told: bool) -> str:
    """Return what would decide an undecided unit. If its row shows a figure, the judge's message comes first."""
    if verdict.status is not Status.INCONCLUSIVE:
        return ""
    remedy = remedy_of(verdict, view)
    seen = [f"{sentence(verdict.message).rstrip('.')}."] if told else []
    return line(" ".join([*seen, *([f"To decide: {remedy}."] if remedy else [])]), 400)


def faults_killed(view: ReportView, verdict: Verdict) -> str:
    """Return `3 of 4 killed`, by the page's drill or by the last drill found next to the run; else `no drill`."""
    unit = (verdict.contract, verdict.claim)
    record = view.drill
    known = drilled_claims([record], record.contracts) if record is not None else view.header.drilled
    found = next((one for one in known if (one.contract, one.claim) == unit), None)
    if found is None:
        return "no drill"
    return f"{found.killed} of {found.planted} killed" + (f", {found.not_run} not run" if found.not_run else "")


def _spark(verdict: Verdict, named: Sequence[tuple[Judged, str]], runs: Sequence[RunEvidence]) -> Markup | None:
    """Draw what shows at a glance: the ratio of each process, or the losses of both arms; None without either."""
    for part, prefix in named:
        of_process = f"{prefix}ratio.process_"
        ratios = [_number(figure) for name, figure in verdict.figures.items() if name.startswith(of_process)]
        demanded = part.value_at("at_least")
        if ratios and isinstance(demanded, float):
            return sparkline.of_ratios(ratios, demanded)
        arms = part.arms()
        candidate = losses(arms.get(part.candidate_path), runs)
        if candidate is not None and _COURSES & set(kind_of(part.kind).card):
            return sparkline.of_series(losses(arms.get("baseline"), runs), candidate)
    return None


def _number(figure: Figure) -> float:
    return float(figure.value) if isinstance(figure.value, int | float) else math.nan


def losses(arm: str | None, runs: Sequence[RunEvidence]) -> Doubles | None:
    """Return the losses [steps] of an arm's first execution, in the first run that has any; None if no run has."""
    found = [item.series.loss for run in runs for item in run.arms.get(arm or "", [])[:1]]
    return next((loss for loss in found if len(loss)), None)
