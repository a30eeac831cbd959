"""Show claims over several seeds: each seed's values, difference and margin, and the interval of the mean."""

from __future__ import annotations

from harness.evidence.run_evidence import RunEvidence
from harness.judging.sheet import Settled
from harness.kinds.seeds.model import NotWorse
from harness.kinds.seeds.not_worse import joined, pairs_of
from harness.report.blocks import Part, Section, table
from harness.report.charts.plots import seed_differences
from harness.report.glance import JudgedPart, judged_parts
from harness.report.view import ReportView

LOSS = "loss"


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each run that a claim over several seeds judged, or None if there is none."""
    kept = [
        _part(judged, run)
        for judged in judged_parts(view, NotWorse)
        for run in judged.runs
        if run.probe == judged.claim.chosen_probe()
    ]
    shown = [part for part in kept if part is not None]
    lead = (
        "With each seed, both arms train from the same start on the same batches. A positive difference of their "
        "values means that the candidate is worse. The interval is the confidence interval of the trimmed mean, "
        "one-sided at each end."
    )
    return Section("seeds", "Several seeds", lead, shown) if shown else None


def _part(judged: JudgedPart[NotWorse], run: RunEvidence) -> Part | None:
    """Return the section's part about one run, or None if an arm did not finish every seed or does not report the
    metric."""
    claim = judged.claim
    try:
        whole, _ = joined(claim, run)
    except Settled:
        return None
    by_seed = {
        seed: {arm: whole.arms[arm][place] for arm in (claim.candidate, claim.baseline)}
        for place, seed in enumerate(claim.seeds)
        if all(place < len(whole.arms.get(arm, [])) for arm in (claim.candidate, claim.baseline))
    }
    series = [each.series for executions in by_seed.values() for each in executions.values()]
    reported = all(claim.metric == LOSS or claim.metric in each.metrics for each in series)
    if len(by_seed) < len(claim.seeds) or not reported or not all(len(each.loss) for each in series):
        return None
    pairs = pairs_of(claim, by_seed)
    columns = ["seed", claim.candidate, claim.baseline, "worse by", "margin"]
    values = zip(
        *(each.tolist() for each in (pairs.candidate, pairs.baseline, pairs.worse, pairs.margins)), strict=True
    )
    rows: list[list[object]] = [[str(seed), *each] for seed, each in zip(claim.seeds, values, strict=True)]
    what = "final value" if claim.last == 1 else f"mean of the last {claim.last} steps"
    # If an earlier check ended the judgement, the verdict does not contain the mean and the interval.
    found = judged.numbers("worse_by", "worse_by_at_least", "worse_by_at_most")
    of_seeds = (claim.seeds, pairs.worse.tolist(), pairs.margins.tolist())
    plots = [seed_differences(*of_seeds, mean=found[0], interval=found[1:], metric=claim.metric)] if found else []
    tables = [table(f"{claim.metric}, {what}", columns, rows)]
    return Part(
        " · ".join(judged.unit), tables=tables, runs=[run.run_id], judged=[judged.drawn(plot) for plot in plots]
    )
