"""Hold the series that a judge compares, so that a chart draws the very series that were judged.

A row of the table of kinds names the function that returns them (`compares`); judge, plots and small images call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.contract.claims import AnyPart
from harness.errors import KindError
from harness.evidence.run_evidence import RunEvidence
from harness.judging.context import executed
from harness.judging.series import LOSS, Bounds, Compare, Difference, Losses, apart, difference, judged_steps, losses
from harness.judging.sheet import Settled
from harness.judging.verdict import Verdict
from harness.kinds import kind_of, resolve

ANY = Bounds(None)


@dataclass(frozen=True)
class Compared:
    """Two series [steps] by the names that a chart gives them. repeats: further runs of the baseline [steps]."""

    candidate: str
    baseline: str
    ours: Losses
    theirs: Losses
    metric: str = LOSS
    compare: Compare = "every"
    repeats: tuple[Losses, ...] = ()

    @property
    def name(self) -> str:
        """Return a name that no other comparison of a run has, unless it is of the same steps of the same series."""
        which = [*([] if self.metric == LOSS else [self.metric]), *([] if self.compare == "every" else [self.compare])]
        return ", ".join([f"{self.candidate} against {self.baseline}", *which])

    def difference(self, bounds: Bounds = ANY) -> Difference:
        """Return by how much the judged steps differ."""
        return difference(self.ours, self.theirs, self.compare, bounds)

    def repeated(self, bounds: Bounds = ANY) -> list[Difference]:
        """Return by how much each further run of the baseline differs from its first one."""
        return [difference(each, self.theirs, self.compare, bounds) for each in self.repeats]

    @cached_property
    def distances(self) -> Losses:
        """Return the absolute difference at each judged step."""
        ours, theirs, _ = judged_steps(self.ours, self.theirs, self.compare)
        return apart(ours, theirs)


def of_two_arms(part: AnyPart, run: RunEvidence) -> list[Compared]:
    """Return the losses of the candidate and of its baseline; settle where one of them is missing."""
    candidate, baseline = (part.arms()[path] for path in (part.candidate_path, part.baseline_path))
    return [Compared(candidate, baseline, losses(executed(run, candidate)), losses(executed(run, baseline)))]


def judged_series(part: AnyPart, run: RunEvidence, verdict: Verdict, prefix: str = "") -> Sequence[Compared]:
    """Return what a part's judge compared in a run: that of the rank that decided, where each rank is judged.

    Nothing, where the kind compares no series, the part is not judged from such a run, or evidence is missing.
    prefix: of the part's figures in the verdict.
    """
    kind = kind_of(part.kind)
    if kind.compares is None or run.probe != (part.chosen_probe() or next(iter(kind.probes))):
        return ()
    try:
        found: Sequence[Compared] = resolve(kind.compares)(part, of_deciding_rank(part, run, verdict, prefix))
    except (Settled, KindError):
        return ()
    return found


def of_deciding_rank(part: AnyPart, run: RunEvidence, verdict: Verdict, prefix: str = "") -> RunEvidence:
    """Return the evidence of the rank that decided, where each rank is judged; else the run's own."""
    rank = verdict.figures.get(f"{prefix}rank") if part.judged_at == "each rank" else None
    if rank is not None and isinstance(rank.value, int) and 0 < rank.value <= len(run.ranks):
        return run.ranks[rank.value - 1]
    return run
