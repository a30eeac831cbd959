"""Gradient differences by layer and tensor, clipped norms, and the micro-batches that gradients are the mean of."""

from __future__ import annotations

import math
import re

from harness.contract.kinds.accumulation import Accumulation
from harness.contract.kinds.training import GradientMatch
from harness.evidence.arm_records import Gradients
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.numbers import counted
from harness.report import plots
from harness.report.blocks import JudgedPlot, Part, Section, Table, Unit, table
from harness.report.view import ReportView

SHOWN = 12  # rows of a table; the run directory holds all
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d{1,4})\.(.+)$")


def section(view: ReportView) -> Section | None:
    """A part for each arm of a run whose gradients a claim judged."""
    claims: dict[tuple[str, str], tuple[str, GradientMatch | Accumulation]] = {}
    units: dict[tuple[str, str], set[Unit]] = {}
    for verdict, parts, runs in view.judged():
        for part in parts:
            if isinstance(part, GradientMatch | Accumulation):
                title = f"{verdict.contract} · {verdict.workload} · {part.candidate}"
                claims.update({(run.run_id, part.candidate): (title, part) for run in runs})
                for run in runs:
                    unit = (verdict.contract, verdict.claim, verdict.workload)
                    units.setdefault((run.run_id, part.candidate), set()).add(unit)
    shown = [
        _part(title, view.evidence[run], arm, claim, frozenset(units[run, arm]))
        for (run, arm), (title, claim) in claims.items()
    ]
    kept = [part for part in shown if part is not None]
    lead = (
        "Gradients of every trainable tensor after clipping, reduced on the device and compared with the baseline arm "
        "at the chosen steps; and the norm of every clipping group before and after."
    )
    return Section("gradients", "Gradients", lead, kept) if kept else None


def _part(
    title: str, run: RunEvidence, arm: str, claim: GradientMatch | Accumulation, units: frozenset[Unit]
) -> Part | None:
    records = [record for item in run.arms.get(arm, [])[:1] for record in item.gradients]
    if not records:
        return None
    compared = [
        (
            tensor.name,
            record.step,
            float(tensor.max_abs_difference),
            tensor.digest == tensor.baseline_digest,
            float(tensor.max_abs),
        )
        for record in records
        for tensor in record.tensors
        if tensor.max_abs_difference is not None
    ]
    part = Part(title, runs=[run.run_id])
    if isinstance(claim, Accumulation):
        part.text.append(_micro_batches(run.arms[arm][0]))
    if compared:
        equal = sum(1 for row in compared if row[3])
        steps = ", ".join(str(step) for step in sorted({row[1] for row in compared})[:20])
        are = "is" if equal == 1 else "are"
        part.text.append(
            f"{equal} of {counted(len(compared), 'compared tensor')} {are} equal in every bit, at steps {steps}."
        )
        points = _points([(name, value) for name, _, value, _, _ in compared])
        if equal < len(compared):  # of what is equal in bits a plot shows nothing
            bound = claim.max_abs_difference if isinstance(claim, GradientMatch) else None
            part.judged.append(JudgedPlot(plots.gradients(points, bound), units))
        # A difference that is not a number is the worst there is.
        worst = sorted(compared, key=lambda row: -row[2] if math.isfinite(row[2]) else -math.inf)
        columns = ["tensor", "step", "largest difference", "equal bits", "largest gradient"]
        part.tables.append(table("Tensors, largest difference first", columns, worst, folded=True, shown=SHOWN))
    norms = _norms(records, claim)
    part.tables.extend([norms] if norms else [])
    return part


def _points(values: list[tuple[str, float]]) -> list[tuple[int, str, float]]:
    """(layer, kind of tensor, worst difference over the steps); tensors outside any layer stand at layer -1."""
    worst: dict[tuple[int, str], float] = {}
    for name, value in values:
        match = _LAYER.search(name)
        key = (int(match[1]), match[2]) if match else (-1, "outside the layers")
        worst[key] = max(worst.get(key, 0.0), value if math.isfinite(value) else math.inf)
    return [(layer, kind, value) for (layer, kind), value in worst.items()]


def _micro_batches(execution: ArmEvidence) -> str:
    """What the harness saw of an arm that accumulates."""
    read = [digests for block in execution.micro_batches for digests in block.digests]
    numbers = ", ".join(str(number) for number in sorted({len(digests) for digests in read})) or "unrecorded"
    repeating = sum(len(set(digests)) < len(digests) for digests in read)
    updates = max(execution.end.updates or [0]) if execution.end is not None else 0
    return (
        f"Micro-batches in a step: {numbers}; steps in which one was read again: {repeating} of {len(read)}; "
        f"updates by the optimizer's own counter: {updates}."
    )


def _norms(records: list[Gradients], claim: GradientMatch | Accumulation) -> Table | None:
    norms = [
        (group.group, record.step, float(group.before), float(group.after))
        for record in records
        for group in record.groups
    ]
    if not norms:
        return None
    clipped = claim.clipped_norm if isinstance(claim, GradientMatch) else None
    limit = clipped.at_most if clipped else None
    ordered = sorted(norms, key=lambda row: -row[3] if math.isfinite(row[3]) else -math.inf)
    demanded = f"; at most {limit:g}" if limit else ""
    caption = f"Norms of the clipping groups, largest after clipping first{demanded}"
    return table(caption, ["group", "step", "before", "after"], ordered, folded=True, shown=SHOWN)
