"""Show loss trajectories of a run's arms, and the differences that its claims judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.contract.claims import AnyPart
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.series import LOSS
from harness.kinds import kind_of, kinds
from harness.kinds.trajectory.model import Repeatability, TrajectoryMatch
from harness.report.blocks import JudgedPlot, Part, Section, Table, Unit, table
from harness.report.charts import plots
from harness.report.charts.decimate import Doubles, absolute_difference, first_differing, relative_difference
from harness.report.charts.plots import Role
from harness.report.text import line, number, several
from harness.report.view import ReportView

ANCHOR = "trajectories"


@dataclass
class Comparison:
    """Two series that claims compare, their bounds, and the noise floor measured for them, if any."""

    name: str
    candidate: Doubles
    baseline: Doubles
    floor: float | None
    tolerances: set[float] = field(default_factory=set)
    relative: set[float] = field(default_factory=set)  # bounds
    units: set[Unit] = field(default_factory=set)


@dataclass
class Pair:
    """The arms that one plot shows together, by the name of their curve, and whose units it is of."""

    metric: str
    curves: dict[str, plots.Curve] = field(default_factory=dict)
    units: set[Unit] = field(default_factory=set)


@dataclass
class Seen:
    """What claims compare of one run: pairs by candidate, baseline and metric; comparisons by name."""

    pairs: dict[tuple[str, str, str], Pair] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each judged run whose arms left series, None where there is none."""
    drawn = {probe for kind in kinds().values() if ANCHOR in kind.card for probe in kind.probes}
    seen: dict[str, Seen] = {}
    for verdict, parts, runs in view.judged():
        unit = (verdict.contract, verdict.claim, verdict.workload)
        for run in runs:
            if run.probe in drawn and any(run.arms.values()):
                of_run = seen.setdefault(run.run_id, Seen())
                for part in parts:
                    if ANCHOR in kind_of(part.kind).card:
                        _note(of_run, part, run, unit)
    parts_shown = [_part(view.title_of(run_id), view.evidence[run_id], of_run) for run_id, of_run in seen.items()]
    if not parts_shown:
        return None
    lead = (
        "Loss of every arm by training step; the curves stand in the cards of the claims that compare them. "
        "The noise floor is the largest difference between two runs of the same baseline."
    )
    return Section(ANCHOR, "Trajectories", lead, parts_shown)


def _note(seen: Seen, part: AnyPart, run: RunEvidence, unit: Unit) -> None:
    """Add what the claim compares in the run."""
    arms = part.arms()
    metric = part.metric if isinstance(part, TrajectoryMatch) else LOSS
    pair = seen.pairs.setdefault((arms["candidate"], arms.get("baseline", ""), metric), Pair(metric))
    found = {curve.name: curve for curve in _curves(arms, metric, run)}
    pair.curves.update({name: curve for name, curve in found.items() if name not in pair.curves})
    pair.units.add(unit)
    if isinstance(part, TrajectoryMatch | Repeatability):
        for item in _comparisons(part, run):
            known = seen.comparisons.setdefault(item.name, item)
            known.units.add(unit)
            known.tolerances.update(_given(part.max_abs_difference))
            known.relative.update(_given(part.max_relative_difference))


def _given(bound: float | None) -> list[float]:
    return [] if bound is None else [bound]


def _curves(arms: Mapping[str, str], metric: str, run: RunEvidence) -> Iterator[plots.Curve]:
    """Yield the claim's arms by its names. For an arm compared with itself, the first run is the baseline."""
    alone = "baseline" not in arms
    for path, arm in arms.items():
        replicas = [_series(each, metric) for each in run.arms.get(arm, [])]
        role = {"candidate": Role.CANDIDATE, "baseline": Role.BASELINE}.get(path, Role.CONTROL)
        again = alone and path == "candidate" and len(replicas) > 1
        for place, values in enumerate(replicas if again else replicas[:1]):
            name = f"{arm}, run {place}" if again else arm
            if len(values):
                yield plots.Curve(name, (Role.REPLICA if place else Role.BASELINE) if again else role, values)


def _comparisons(part: TrajectoryMatch | Repeatability, run: RunEvidence) -> list[Comparison]:
    candidates = run.arms.get(part.candidate, [])
    if isinstance(part, Repeatability):
        first = candidates[:1]
        return [
            Comparison(f"{part.candidate}, run {place} against run 0", item.series.loss, first[0].series.loss, None)
            for place, item in enumerate(candidates[1:], start=1)
        ]
    baselines = run.arms.get(part.baseline, [])
    if not candidates or not baselines:
        return []
    name = f"{part.candidate} against {part.baseline}" + ("" if part.metric == LOSS else f", {part.metric}")
    ours, *theirs = (_series(each, part.metric) for each in (candidates[0], *baselines))
    return [Comparison(name, ours, theirs[0], _floor(theirs))]


def _series(execution: ArmEvidence, metric: str) -> Doubles:
    """Return the metric [steps]; an empty array where it was not reported."""
    return execution.series.loss if metric == LOSS else execution.series.metrics.get(metric, np.empty(0))


def _floor(baselines: list[Doubles]) -> float | None:
    """Return the largest finite difference between two runs of the baseline; None when it ran once, or has none."""
    if len(baselines) < 2:
        return None
    difference = absolute_difference(baselines[0], baselines[1])
    finite = difference[np.isfinite(difference)]
    return float(finite.max()) if len(finite) else None


def _part(title: str, run: RunEvidence, seen: Seen) -> Part:
    curves = [
        plots.Curve(arm if place == 0 else f"{arm}, run {place}", Role.OTHER, item.series.loss)
        for arm, replicas in run.arms.items()
        for place, item in enumerate(replicas)
        if len(item.series.loss)
    ]
    part = Part(title, runs=[run.run_id])
    for pair in seen.pairs.values():
        if pair.curves:
            drawn = plots.trajectories(list(pair.curves.values()), pair.metric)
            part.judged.append(JudgedPlot(drawn, frozenset(pair.units)))
    if curves and not part.judged:
        # Further runs of an arm measure noise; drawn here they would only lie over the first.
        part.plots.append(plots.trajectories([curve for curve in curves if curve.name in run.arms]))
    rows = [row for item in seen.comparisons.values() for row in _compared(part, item)]
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
    part.tables.extend([_courses(curves)] + ([table("Differences", columns, rows)] if rows else []))
    part.text.extend(f"Text trained on, by digest: {line(digest, 80)}." for digest in _text_digests(run))
    return part


def _compared(part: Part, item: Comparison) -> Iterator[list[object]]:
    """Yield the table row of a comparison, and add its words and plot to the part; equal bits need no plot."""
    values = absolute_difference(item.candidate, item.baseline)
    if not len(values):
        return
    first = first_differing(item.candidate, item.baseline)
    name, tolerances = item.name, sorted(item.tolerances)
    if first is None:
        part.text.append(f"{line(name)}: equal in every bit at {_steps(item)}.")
    for bound in sorted(item.relative):
        apart = number(float(relative_difference(item.candidate, item.baseline).max()))
        allowed = f"{bound:g} times are allowed"
        part.text.append(f"{line(name)}: apart by at most {apart} times the baseline's value; {allowed}.")
    if first is not None:
        drawn = plots.difference(values, tolerances=tolerances, floor=item.floor, first=first, name=name)
        part.judged.append(JudgedPlot(drawn, frozenset(item.units)))
    finite = values[np.isfinite(values)]
    largest = float(finite.max()) if len(finite) else None
    at = int(np.argmax(np.where(np.isfinite(values), values, -1.0))) if largest else None
    strictest = tolerances[0] if tolerances else None
    yield [name, len(values), first, largest, at, len(values) - len(finite), item.floor, strictest]


def _steps(item: Comparison) -> str:
    """Return a phrase for the compared steps. Where one series is shorter, it says that they are not all."""
    ours, theirs = len(item.candidate), len(item.baseline)
    both = several(min(ours, theirs), "step")
    if ours != theirs:
        return f"the {both} that both have, of {ours:,} and {theirs:,}"
    return f"all {both}" if ours != 1 else both


def _courses(curves: list[plots.Curve]) -> Table:
    rows: list[list[object]] = []
    for curve in curves:
        finite = curve.values[np.isfinite(curve.values)]
        ends = [float(curve.values[0]), float(curve.values[-1])]
        extremes = [float(finite.min()), float(finite.max())] if len(finite) else [None, None]
        rows.append([curve.name, len(curve.values), *ends, *extremes, len(curve.values) - len(finite)])
    return table("Loss by arm", ["arm", "steps", "first", "last", "smallest", "largest", "not finite"], rows)


def _text_digests(run: RunEvidence) -> list[str]:
    digests = [item.start.facts.get("text_digest") for replicas in run.arms.values() for item in replicas]
    return list(dict.fromkeys(str(digest) for digest in digests if digest))
