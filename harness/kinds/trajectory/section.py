"""Show the losses of a run's arms by step, and the differences that claims judge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.contract.schema import AnyPart
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.series import LOSS, Compared
from harness.kinds import kind_of, kinds
from harness.report.blocks import JudgedPlot, Part, Section, Table, Unit, table
from harness.report.charts import plots
from harness.report.charts.plots import Doubles, Role
from harness.report.glance import arm_in, drawn_series, named_parts
from harness.report.text import line, number, several
from harness.report.view import ReportView

ANCHOR = "trajectories"


@dataclass
class Comparison:
    """Two compared series (`pair`), with the units and the absolute bounds (`tolerances`) of claims about them."""

    pair: Compared
    tolerances: set[float] = field(default_factory=set)
    relative: set[float] = field(default_factory=set)  # the relative bounds
    units: set[Unit] = field(default_factory=set)


@dataclass
class Pair:
    """One plot: its curves by name, their metric, and the units whose claims compare the curves."""

    metric: str
    curves: dict[str, plots.Curve] = field(default_factory=dict)
    units: set[Unit] = field(default_factory=set)


@dataclass
class Seen:
    """The data of one run's plots. pairs: (candidate, baseline, metric) -> the curves of a plot. comparisons: each
    compared pair of series, by name."""

    pairs: dict[tuple[str, str, str], Pair] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each judged run with an executed arm, or None if there is no such run."""
    drawn = {probe for kind in kinds().values() if ANCHOR in kind.card for probe in kind.probes}
    seen: dict[str, Seen] = {}
    for verdict, parts, runs in view.judged():
        unit = (verdict.contract, verdict.claim, verdict.workload)
        for part, prefix in named_parts(view, verdict, parts):
            for run in runs:
                if ANCHOR in kind_of(part.kind).card and run.probe in drawn and any(run.arms.values()):
                    of_run = seen.setdefault(run.run_id, Seen())
                    _note(of_run, part, run, unit, drawn_series(part, run, verdict, prefix))
    parts_shown = [_part(view.title_of(run_id), view.evidence[run_id], of_run) for run_id, of_run in seen.items()]
    if not parts_shown:
        return None
    lead = (
        "Loss of every arm by training step. The cards of the claims that compare the losses show the curves. The "
        "noise floor is the largest difference between two runs of the same baseline."
    )
    return Section(ANCHOR, "Trajectories", lead, parts_shown)


def _note(seen: Seen, part: AnyPart, run: RunEvidence, unit: Unit, pairs: Sequence[Compared]) -> None:
    """Add the curves, the bounds and the unit of one claim to `seen`. pairs: the series that the claim compares."""
    arms = part.arms()
    metric = pairs[0].metric if pairs else LOSS
    pair = seen.pairs.setdefault((arms["candidate"], arms.get("baseline", ""), metric), Pair(metric))
    for curve in _curves(arms, metric, run, pairs):
        pair.curves.setdefault(curve.name, curve)
    pair.units.add(unit)
    for compared in pairs:
        known = seen.comparisons.setdefault(compared.name, Comparison(compared))
        known.units.add(unit)
        for bounds, name in ((known.tolerances, "max_abs_difference"), (known.relative, "max_relative_difference")):
            bound = getattr(part, name, None)
            bounds.update([] if bound is None else [bound])


def _curves(arms: Mapping[str, str], metric: str, run: RunEvidence, pairs: Sequence[Compared]) -> Iterator[plots.Curve]:
    """Yield the compared curves, then the curves of the claim's other arms. For an arm that is compared with itself,
    yield a curve for each of its runs."""
    for pair in pairs:
        yield plots.Curve(pair.baseline, Role.BASELINE, pair.theirs)
        yield plots.Curve(pair.candidate, Role.CANDIDATE if "baseline" in arms else Role.REPLICA, pair.ours)
    roles = {"candidate": Role.CANDIDATE, "baseline": Role.BASELINE}
    for path, arm in arms.items():
        values = [_series(each, metric) for each in run.arms.get(arm, [])[:1]]
        if values and len(values[0]) and not (pairs and path in roles):
            yield plots.Curve(arm_in(run, arm), roles.get(path, Role.CONTROL), values[0])


def _series(execution: ArmEvidence, metric: str) -> Doubles:
    """Return the metric's value at each step (shape [steps]), or an empty array if the metric was not reported."""
    return execution.series.loss if metric == LOSS else execution.series.metrics.get(metric, np.empty(0))


def _part(title: str, run: RunEvidence, seen: Seen) -> Part:
    curves = [
        plots.Curve(arm_in(run, arm) + (f", run {place}" if place else ""), Role.OTHER, item.series.loss)
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
        # Show only the first execution of each arm. Repetitions measure noise, and would hide the first one's curve.
        first = {arm_in(run, arm) for arm in run.arms}
        part.plots.append(plots.trajectories([curve for curve in curves if curve.name in first]))
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
    part.text.extend(f"Text that the arms trained on, by digest: {line(digest, 80)}." for digest in _text_digests(run))
    return part


def _compared(part: Part, item: Comparison) -> Iterator[list[object]]:
    """Yield the table row of a comparison, if there is a step to compare. Add the comparison's text to `part`. Also add
    a plot if the two series differ and several steps are compared."""
    pair, values, found = item.pair, item.pair.distances, item.pair.difference()
    if not len(values):
        return
    first, name, tolerances = found.first_differing, pair.name, sorted(item.tolerances)
    if first is None:
        part.text.append(f"{line(name)}: equal in every bit at {_steps(pair)}.")
    for bound in sorted(item.relative):
        apart = number(found.largest_relative)
        allowed = f"{bound:g} times are allowed"
        part.text.append(f"{line(name)}: differs by at most {apart} times the baseline's value; {allowed}.")
    floor = max((each.largest for each in pair.repeated()), default=None)
    floor = floor if floor is not None and math.isfinite(floor) else None
    if first is not None and len(values) > 1:  # a plot of a single step would show no more than the table
        drawn = plots.difference(values, tolerances=tolerances, floor=floor, first=first, name=name)
        part.judged.append(JudgedPlot(drawn, frozenset(item.units)))
    finite = values[np.isfinite(values)]
    largest = float(finite.max()) if len(finite) else None
    at = int(np.argmax(np.where(np.isfinite(values), values, -1.0))) if largest else None
    strictest = tolerances[0] if tolerances else None
    yield [name, len(values), first, largest, at, len(values) - len(finite), floor, strictest]


def _steps(pair: Compared) -> str:
    """Return a phrase that names the compared steps, and each arm's number of steps if these numbers differ."""
    ours, theirs = len(pair.ours), len(pair.theirs)
    if pair.compare != "every":
        return f"the {pair.compare} step"
    both = several(min(ours, theirs), "step")
    if ours != theirs:
        return f"the {both} that both arms have, of {ours:,} and {theirs:,}"
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
