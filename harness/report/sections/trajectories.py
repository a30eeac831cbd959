"""Loss trajectories of a run's arms, and the differences that its claims judge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.contract.kinds.training import Repeatability, TrajectoryMatch
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judge.series import LOSS
from harness.report import plots
from harness.report.blocks import Part, Section, Table, table
from harness.report.decimate import Doubles, absolute_difference, first_differing, relative_difference
from harness.report.svg import Plot
from harness.report.text import line
from harness.report.view import ReportView


@dataclass(frozen=True)
class Comparison:
    """Two series that a claim compares, its bounds, and the noise floor measured for it, if any."""

    name: str
    candidate: Doubles
    baseline: Doubles
    tolerance: float | None
    floor: float | None
    relative: float | None  # bound


def section(view: ReportView) -> Section | None:
    """A part for each run whose arms left series and that a trajectory or repeatability claim judged."""
    comparisons: dict[str, dict[str, Comparison]] = {}
    for _, parts, runs in view.judged():
        for run in runs:
            if run.probe != "paired" or not any(run.arms.values()):
                continue
            by_name = comparisons.setdefault(run.run_id, {})
            for part in parts:
                if isinstance(part, TrajectoryMatch | Repeatability):
                    by_name.update({item.name: item for item in _comparisons(part, run)})
    parts_shown = [
        _part(view.title_of(run_id), view.evidence[run_id], list(by_name.values()))
        for run_id, by_name in comparisons.items()
    ]
    if not parts_shown:
        return None
    lead = (
        "Loss of every arm by training step. In the difference, steps that agree exactly lie on the line marked 0. "
        "The noise floor is the largest difference between two runs of the same baseline. "
        "Long series are drawn by the extremes of each stretch; the run directory holds every step."
    )
    return Section("trajectories", "Trajectories", lead, parts_shown)


def _comparisons(part: TrajectoryMatch | Repeatability, run: RunEvidence) -> list[Comparison]:
    candidates = run.arms.get(part.candidate, [])
    if isinstance(part, Repeatability):
        first = candidates[:1]
        return [
            Comparison(
                f"{part.candidate}, run {place} against run 0",
                item.series.loss,
                first[0].series.loss,
                part.max_abs_difference,
                None,
                part.max_relative_difference,
            )
            for place, item in enumerate(candidates[1:], start=1)
        ]
    baselines = run.arms.get(part.baseline, [])
    if not candidates or not baselines:
        return []
    name = f"{part.candidate} against {part.baseline}" + ("" if part.metric == LOSS else f", {part.metric}")
    ours, *theirs = (_series(each, part.metric) for each in (candidates[0], *baselines))
    bounds = (part.max_abs_difference, _floor(theirs), part.max_relative_difference)
    return [Comparison(name, ours, theirs[0], *bounds)]


def _series(execution: ArmEvidence, metric: str) -> Doubles:
    """The metric [steps]; nothing where it was not reported."""
    return execution.series.loss if metric == LOSS else execution.series.metrics.get(metric, np.empty(0))


def _floor(baselines: list[Doubles]) -> float | None:
    """Largest difference between two runs of the baseline; None when it ran once, or differs without a finite size."""
    if len(baselines) < 2:
        return None
    difference = absolute_difference(baselines[0], baselines[1])
    finite = difference[np.isfinite(difference)]
    return float(finite.max()) if len(finite) else None


def _part(title: str, run: RunEvidence, comparisons: list[Comparison]) -> Part:
    curves = [
        plots.Curve(arm if place == 0 else f"{arm}, run {place}", item.series.loss)
        for arm, replicas in run.arms.items()
        for place, item in enumerate(replicas)
        if len(item.series.loss)
    ]
    # Further runs of an arm measure noise; drawn here they would only lie over the first.
    drawn = [curve for curve in curves if curve.name in run.arms]
    images: list[Plot] = [plots.trajectories(drawn)] if drawn else []
    rows: list[list[object]] = []
    equal: list[str] = []
    for item in comparisons:
        values = absolute_difference(item.candidate, item.baseline)
        if not len(values):
            continue
        first = first_differing(item.candidate, item.baseline)
        name = item.name
        if first is None:
            equal.append(f"{line(name)}: equal in every bit at all {len(values):,} steps.")
        if item.relative is not None:
            apart = relative_difference(item.candidate, item.baseline).max()
            allowed = f"{item.relative:g} times are allowed"
            equal.append(f"{line(name)}: apart by at most {apart:.3g} times the baseline's value; {allowed}.")
        images.append(plots.difference(values, tolerance=item.tolerance, floor=item.floor, first=first, name=name))
        finite = values[np.isfinite(values)]
        largest = float(finite.max()) if len(finite) else None
        at = int(np.argmax(np.where(np.isfinite(values), values, -1.0))) if largest else None
        rows.append([name, len(values), first, largest, at, len(values) - len(finite), item.floor, item.tolerance])
    columns = [
        "compared",
        "steps",
        "first differing step",
        "largest difference",
        "at step",
        "not finite",
        "noise floor",
        "tolerance",
    ]
    tables = [_courses(curves)] + ([table("Differences", columns, rows)] if rows else [])
    text = [f"Text trained on, by digest: {line(digest, 80)}." for digest in _text_digests(run)]
    return Part(title, [*equal, *text], images, tables, [run.run_id])


def _courses(curves: list[plots.Curve]) -> Table:
    rows: list[list[object]] = []
    for curve in curves:
        finite = curve.loss[np.isfinite(curve.loss)]
        ends = [float(curve.loss[0]), float(curve.loss[-1])]
        extremes = [float(finite.min()), float(finite.max())] if len(finite) else [None, None]
        rows.append([curve.name, len(curve.loss), *ends, *extremes, len(curve.loss) - len(finite)])
    return table("Loss by arm", ["arm", "steps", "first", "last", "smallest", "largest", "not finite"], rows)


def _text_digests(run: RunEvidence) -> list[str]:
    digests = [item.start.facts.get("text_digest") for replicas in run.arms.values() for item in replicas]
    return list(dict.fromkeys(str(digest) for digest in digests if digest))
