"""Find the data for a unit's images: the series, or the ratios of processes, that the unit's judges compared."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from harness.contract.base import Judged
from harness.contract.schema import AnyPart, CompositeClaim, part_names
from harness.evidence.run_evidence import RunEvidence
from harness.judging.series import Compared, judged_series
from harness.judging.verdict import WORST_FIRST, Status, Verdict
from harness.report.blocks import JudgedPlot
from harness.report.charts.svg import Plot
from harness.report.view import ReportView

Claim = TypeVar("Claim")


@dataclass(frozen=True)
class Ratios:
    """The speed ratio of candidate to baseline in each process, and the demanded ratio."""

    candidate: str
    baseline: str
    by_process: dict[int, float]
    demanded: float


def named_parts(view: ReportView, verdict: Verdict, parts: Sequence[AnyPart]) -> list[tuple[AnyPart, str]]:
    """Return each part of a claim with the prefix of its figures' names. The part with the worst status comes first."""
    claim = view.claim(verdict.contract, verdict.claim)
    if not isinstance(claim, CompositeClaim):
        return [(part, "") for part in parts]
    named = [(part, f"{name}.") for part, name in zip(parts, part_names(claim), strict=True)]
    return sorted(named, key=lambda each: WORST_FIRST.index(_status_of(verdict, each[1])))


@dataclass(frozen=True)
class JudgedPart(Generic[Claim]):
    """A claim, or a part of a composite claim, with its verdict on one unit.

    prefix: the start of the names of this part's figures in the verdict.
    """

    verdict: Verdict
    claim: Claim
    prefix: str
    runs: Sequence[RunEvidence]

    @property
    def unit(self) -> tuple[str, str, str]:
        return self.verdict.contract, self.verdict.claim, self.verdict.workload

    @property
    def where(self) -> str:
        """Return the contract and the workload as a heading."""
        return f"{self.verdict.contract} · {self.verdict.workload}"

    def numbers(self, *names: str) -> list[float]:
        """Return the judge's figures with these names, or an empty list if one is missing or is not a number."""
        found = [self.verdict.figures.get(f"{self.prefix}{name}") for name in names]
        values = [float(each.value) for each in found if each is not None and isinstance(each.value, int | float)]
        return values if len(values) == len(names) else []

    def drawn(self, plot: Plot) -> JudgedPlot:
        """Return the plot with the note that this unit was judged from the plotted data."""
        return JudgedPlot(plot, frozenset({self.unit}))


def judged_parts(view: ReportView, kind: type[Claim]) -> Iterator[JudgedPart[Claim]]:
    """Yield each judged claim of a kind, in the order of the verdicts. Parts of composite claims are included."""
    for verdict, parts, runs in view.judged():
        for part, prefix in named_parts(view, verdict, parts):
            if isinstance(part, kind):
                yield JudgedPart(verdict, part, prefix, runs)


def arm_in(run: RunEvidence, arm: str) -> str:
    """Return an arm's name for a plot or a table of the run. The name is marked if the capture of the arm failed."""
    return f"{arm} (capture failed)" if run.capture_failed(arm) else arm


def drawn_series(part: AnyPart, run: RunEvidence, verdict: Verdict, prefix: str) -> list[Compared]:
    """Return the series that the judge compared (see `judged_series`), with the names that plots use for the arms."""
    return [
        replace(pair, candidate=arm_in(run, pair.candidate), baseline=arm_in(run, pair.baseline))
        for pair in judged_series(part, run, verdict, prefix)
    ]


def _status_of(verdict: Verdict, prefix: str) -> Status:
    """Return the status of one part of the verdict's claim."""
    figure = verdict.figures.get(f"{prefix}status")
    return Status(str(figure.value)) if figure is not None else verdict.status


def counted_ratios(verdict: Verdict, prefix: str) -> dict[int, float]:
    """Return the ratio of each process that the judge counted, by the number of the process."""
    found = {}
    for name, figure in verdict.figures.items():
        numbered = re.fullmatch(r"ratio\.process_(\d+)", name.removeprefix(prefix))
        if numbered and name.startswith(prefix) and isinstance(figure.value, int | float):
            found[int(numbered[1])] = float(figure.value)
    return found


def glance(
    view: ReportView, verdict: Verdict, parts: Sequence[AnyPart], runs: Sequence[RunEvidence]
) -> Compared | Ratios | None:
    """Return the data for a unit's small image: the ratios of processes, or the two series that differ most, or None.

    If the claim has several parts, the worst part that has such data is used.
    """
    for part, prefix in named_parts(view, verdict, parts):
        ratios, demanded = counted_ratios(verdict, prefix), part.value_at("at_least")
        if ratios and isinstance(demanded, float):
            return Ratios(*_arms(part), ratios, demanded)
        pairs = [pair for run in runs for pair in drawn_series(part, run, verdict, prefix)]
        if pairs:
            return max(pairs, key=_apart)
    return None


def _arms(part: Judged) -> tuple[str, str]:
    arms = part.arms()
    return arms.get(part.candidate_path, ""), arms.get(part.baseline_path, "")


def _apart(pair: Compared) -> tuple[bool, float]:
    largest = pair.difference().largest
    return math.isnan(largest), largest
