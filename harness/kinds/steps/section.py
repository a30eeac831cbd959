"""Show single steps against a reference: each quantity's largest error, where it was, and what rounding alone gave."""

from __future__ import annotations

from harness.evidence.arm_records import ComparedStep, StepReading
from harness.evidence.run_evidence import RunEvidence
from harness.kinds.steps.model import StepMatch
from harness.numbers import counted
from harness.report.blocks import Part, Section, table
from harness.report.glance import judged_parts
from harness.report.text import larger
from harness.report.view import ReportView

Row = tuple[int, StepReading]


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each run that a claim about single steps judged, None where there is none."""
    kept = [
        _part(f"{judged.where} · {judged.claim.candidate}", run, judged.claim)
        for judged in judged_parts(view, StepMatch)
        for run in judged.runs
        if _steps(run, judged.claim)
    ]
    lead = (
        "Each step beside the reference's step from the same state. Loss, norms before the clip and gradients after "
        "it: the L2 norm of the difference over that of the reference. Moments and parameters: the worst element, over "
        "the absolute values that it is computed from. The yardstick is the reference in the candidate's precision."
    )
    return Section("steps", "Steps against a reference", lead, kept) if kept else None


def _steps(run: RunEvidence, claim: StepMatch) -> list[ComparedStep]:
    return [step for execution in run.arms.get(claim.candidate, [])[:1] for step in execution.compared_steps]


def _part(title: str, run: RunEvidence, claim: StepMatch) -> Part:
    steps = _steps(run, claim)
    facts = run.arms[claim.reference][0].start.facts if run.arms.get(claim.reference) else {}
    by = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if name in _MADE_BY)
    text = (
        f"{counted(len(steps), 'step')} of {claim.candidate} against {claim.reference}, "
        f"with {claim.yardstick} as the yardstick."
    )
    part = Part(title, [text, *([f"The reference: {by}."] if by else [])], runs=[run.run_id])
    quantities: dict[str, list[Row]] = {}
    for step in steps:
        for reading in step.readings:
            quantities.setdefault(reading.quantity, []).append((step.step, reading))
    columns = ["quantity", "tensors", "largest error", "at step", "tensor", "yardstick's largest"]
    part.tables.append(table("Largest errors", columns, [_row(name, rows) for name, rows in quantities.items()]))
    return part


_MADE_BY = ("dtype", "transformers", "peft", "torch", "dequantized_by")


def _row(quantity: str, rows: list[Row]) -> list[object]:
    step, worst = max(rows, key=lambda row: larger(row[1].error))
    noise = [reading.yardstick for _, reading in rows if reading.yardstick is not None]
    largest = max(noise, key=larger) if noise else None
    return [quantity, worst.tensors, float(worst.error), step, worst.tensor, largest]
