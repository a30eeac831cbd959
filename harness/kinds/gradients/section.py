"""Show gradient differences by layer and tensor, clipped norms, and the micro-batches of a step."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from harness.evidence.arm_records import Gradients
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.context import executed
from harness.judging.series import of_deciding_rank
from harness.judging.sheet import Settled
from harness.kinds.gradients.compared_gradients import Compared, compared_tensors, records_of
from harness.kinds.gradients.gradient_match import judged_records
from harness.kinds.gradients.model import Accumulation, GradientMatch
from harness.numbers import counted
from harness.report.blocks import JudgedPlot, Part, Section, Table, Unit, table
from harness.report.charts import plots
from harness.report.glance import JudgedPart, judged_parts
from harness.report.view import ReportView

SHOWN = 12  # largest number of rows that a table of the report shows; the run directory contains all rows
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d{1,4})\.(.+)$")


@dataclass
class Seen:
    """The claims about the gradients of one arm of a run, and their units."""

    title: str
    run: RunEvidence
    claims: list[GradientMatch | Accumulation] = field(default_factory=list)
    units: set[Unit] = field(default_factory=set)

    @property
    def bounds(self) -> list[float]:
        """Return the claims' bounds on absolute differences, the strictest first."""
        given = [claim.max_abs_difference for claim in self.claims if isinstance(claim, GradientMatch)]
        return sorted({bound for bound in given if bound is not None})

    @property
    def norm_at_most(self) -> float | None:
        """Return the strictest threshold of clipped norms, or None if no claim has one."""
        clipped = [claim.clipped_norm for claim in self.claims if isinstance(claim, GradientMatch)]
        return min((one.at_most for one in clipped if one is not None), default=None)


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each arm whose gradients a claim judged, or None if there is no such arm."""
    seen: dict[tuple[str, str], Seen] = {}
    both: list[JudgedPart[GradientMatch] | JudgedPart[Accumulation]]
    both = [*judged_parts(view, GradientMatch), *judged_parts(view, Accumulation)]
    for judged in both:
        claim = judged.claim
        for run in judged.runs:
            deciding = of_deciding_rank(claim, run, judged.verdict, judged.prefix)
            title = f"{judged.where} · {claim.candidate}"
            of_arm = seen.setdefault((run.run_id, claim.candidate), Seen(title, deciding))
            of_arm.claims.append(claim)
            of_arm.units.add(judged.unit)
    shown = [_part(run, arm, of_arm) for (run, arm), of_arm in seen.items()]
    kept = [part for part in shown if part is not None]
    lead = (
        "Gradients of every trainable tensor, reduced on the device and compared with the baseline arm at the "
        "chosen steps. Gradients are compared as the step left them. If the step changed them and both arms' "
        "original gradients were recorded, the gradients before the clip are also compared. The norm of every clipping "
        "group is shown before and after clipping."
    )
    return Section("gradients", "Gradients", lead, kept) if kept else None


def judged_gradients(claim: GradientMatch | Accumulation, run: RunEvidence) -> list[Compared]:
    """Return the differences of gradients that the judge checked; [] without a baseline or if evidence is missing."""
    if claim.baseline is None:
        return []
    try:
        candidate, baseline = (executed(run, name) for name in (claim.candidate, claim.baseline))
        records = (
            judged_records(claim, candidate, baseline)
            if isinstance(claim, GradientMatch)
            else records_of(claim, candidate)
        )
        return list(compared_tensors(claim, records, baseline))
    except Settled:
        return []


def _part(run_id: str, arm: str, seen: Seen) -> Part | None:
    run = seen.run
    records = [record for item in run.arms.get(arm, [])[:1] for record in item.gradients]
    if not records:
        return None
    found = {(one.step, one.tensor, one.made): one for claim in seen.claims for one in judged_gradients(claim, run)}
    compared = list(found.values())
    part = Part(seen.title, runs=[run_id])
    if any(isinstance(claim, Accumulation) for claim in seen.claims):
        part.text.append(_micro_batches(run.arms[arm][0]))
    if compared:
        equal = sum(not one.differs for one in compared)
        steps = ", ".join(str(step) for step in sorted({one.step for one in compared})[:20])
        are = "is" if equal == 1 else "are"
        part.text.append(
            f"{equal} of {counted(len(compared), 'compared tensor')} {are} equal in every bit, at steps {steps}."
        )
        points, along = _points([(one.tensor, one.absolute) for one in compared])
        if equal < len(compared):  # if all tensors are equal, a plot would be empty
            part.judged.append(JudgedPlot(plots.gradients(points, seen.bounds, along), frozenset(seen.units)))
        part.tables.append(_tensors(compared))
    norms = _norms(records, seen.norm_at_most)
    part.tables.extend([norms] if norms else [])
    return part


def _tensors(compared: list[Compared]) -> Table:
    """Return a table of tensors, the largest difference of gradients first. NaN and infinity come before numbers."""
    columns = ["tensor", "step", "largest difference", "equal bits", "largest of the baseline"]
    rows: list[list[object]] = []
    both = any(one.made for one in compared)
    for one in sorted(compared, key=lambda one: -one.absolute if math.isfinite(one.absolute) else -math.inf):
        when = ["before the clip" if one.made else "as the step left it"] if both else []
        rows.append([one.tensor, one.step, one.absolute, not one.differs, one.size, *when])
    columns += ["gradient"] if both else []
    return table("Tensors, largest difference first", columns, rows, folded=True, shown=SHOWN)


def _points(values: list[tuple[str, float]]) -> tuple[list[tuple[int | str, str, float]], str]:
    """Return the largest differences at any step, as (layer, kind of tensor, difference), and the title of their axis.
    If no tensor belongs to a layer, return the tensors that differ most, each in the place of a layer."""
    worst: dict[tuple[int | str, str], float] = {}
    layers = any(_LAYER.search(name) for name, _ in values)
    for name, value in values:
        match = _LAYER.search(name)
        others = ("none", "outside the layers") if layers else (name, "a tensor")
        key = (int(match[1]), match[2]) if match else others
        worst[key] = max(worst.get(key, 0.0), value if math.isfinite(value) else math.inf)
    points = [(place, kind, value) for (place, kind), value in worst.items()]
    most = points if layers else sorted(points, key=lambda point: -point[2])[:SHOWN]
    left_out = f"; the {SHOWN} of {len(points)} that differ most" if most[SHOWN - 1 :] and not layers else ""
    return most, "layer" if layers else f"tensor{left_out}"


def _micro_batches(execution: ArmEvidence) -> str:
    read = [digests for block in execution.micro_batches for digests in block.digests]
    numbers = ", ".join(str(number) for number in sorted({len(digests) for digests in read})) or "unrecorded"
    repeating = sum(len(set(digests)) < len(digests) for digests in read)
    updates = max(execution.end.updates or [0]) if execution.end is not None else 0
    return (
        f"Micro-batches in a step: {numbers}; steps that read a micro-batch twice: {repeating} of {len(read)}; "
        f"updates by the optimizer's own counter: {updates}."
    )


def _norms(records: list[Gradients], limit: float | None) -> Table | None:
    norms = [
        (group.group, record.step, float(group.before), float(group.after))
        for record in records
        for group in record.groups
    ]
    if not norms:
        return None
    ordered = sorted(norms, key=lambda row: -row[3] if math.isfinite(row[3]) else -math.inf)
    demanded = f"; at most {limit:g}" if limit else ""
    caption = f"Norms of the clipping groups, largest after clipping first{demanded}"
    return table(caption, ["group", "step", "before", "after"], ordered, folded=True, shown=SHOWN)
