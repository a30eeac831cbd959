"""Show the errors of steps against a reference: the largest of each quantity, and gradients by kind of tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.evidence.arm_records import ComparedStep, StepReading
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.kinds.steps.model import StepAccuracy, StepMatch
from harness.kinds.steps.step_accuracy import Errors, gradient_errors, loss_errors, median_ratio
from harness.numbers import counted
from harness.report.blocks import Part, Section, table
from harness.report.glance import judged_parts
from harness.report.text import larger
from harness.report.view import ReportView

Row = tuple[int, StepReading]


def match_section(view: ReportView) -> Section | None:
    """Return a section with a part for each run that a `step_match` claim judged, or None if there is none."""
    kept = [
        _match_part(f"{judged.where} · {judged.claim.candidate}", run, judged.claim)
        for judged in judged_parts(view, StepMatch)
        for run in judged.runs
        if _steps(run, judged.claim)
    ]
    lead = (
        "Each step is compared with the reference's step from the same state. For the loss, the norms before the clip "
        "and the gradients after the clip, the error is the L2 norm of the difference, divided by the L2 norm of the "
        "reference. For moments and parameters, it is the largest error of an element, relative to the absolute values "
        "from which the element is computed. The yardstick is the reference in the candidate's precision."
    )
    return Section("steps", "Steps against a reference", lead, kept) if kept else None


def _steps(run: RunEvidence, claim: StepMatch) -> list[ComparedStep]:
    return [step for execution in run.arms.get(claim.candidate, [])[:1] for step in execution.compared_steps]


def _match_part(title: str, run: RunEvidence, claim: StepMatch) -> Part:
    steps = _steps(run, claim)
    facts = run.arms[claim.reference][0].start.facts if run.arms.get(claim.reference) else {}
    by = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if name in _MATCH_MADE_BY)
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
    part.tables.append(table("Largest errors", columns, [_match_row(name, rows) for name, rows in quantities.items()]))
    return part


_MATCH_MADE_BY = ("dtype", "transformers", "peft", "torch", "dequantized_by")


def _match_row(quantity: str, rows: list[Row]) -> list[object]:
    step, worst = max(rows, key=lambda row: larger(row[1].error))
    noise = [reading.yardstick for _, reading in rows if reading.yardstick is not None]
    largest = max(noise, key=larger) if noise else None
    return [quantity, worst.tensors, float(worst.error), step, worst.tensor, largest]


# The following functions show two arms' errors against a reference, those of the candidate and of a peer. They show the
# errors of gradients for each kind of tensor, and the errors of losses for each seed.

SHOWN = 12  # largest number of rows that a table of the report shows; the run directory contains all rows
_MADE_BY = ("dtype", "device", "transformers", "peft", "torch", "dequantized_by")


def accuracy_section(view: ReportView) -> Section | None:
    """Return a section with a part for each run that a `step_accuracy` claim judged, or None if there is none."""
    kept = [
        _part(judged.where, run, judged.claim)
        for judged in judged_parts(view, StepAccuracy)
        for run in judged.runs
        if run.step_errors
    ]
    lead = (
        "The candidate's errors and the errors of a peer, which is another implementation in the same precision. "
        "Errors are measured against a reference of higher precision. For gradients after the clip, an error is the L2 "
        "norm of the difference divided by the L2 norm of the reference's gradient. All arms compute the gradients at "
        "the candidate's parameters and on its batch. The tables show the root mean square over seeds and steps. For "
        "losses, the error is the mean absolute difference over all steps, and each arm trains independently."
    )
    return Section("step_accuracy", "Step accuracy", lead, kept) if kept else None


def _part(title: str, run: RunEvidence, claim: StepAccuracy) -> Part:
    gradients = gradient_errors(run.step_errors)
    part = Part(title, list(_made_by(run, claim)), runs=[run.run_id])
    columns = [f"error of {claim.candidate}", f"error of {claim.peer}", "ratio"]
    kinds: dict[str, list[Errors]] = {}
    for each in gradients:
        kinds.setdefault(each.name.rpartition(".")[2], []).append(each)
    rows = [_kind_row(kind, errors) for kind, errors in {**kinds, "all": gradients}.items() if errors]
    heads = ["tensors", "number", *(f"median {name}" for name in columns), "largest ratio"]
    part.tables.append(table("Gradients by kind of tensor", heads, rows))
    worst = sorted(gradients, key=lambda each: larger(each.ratio), reverse=True)
    heads = ["tensor", *columns]
    part.tables.append(
        table("Gradients, largest ratio first", heads, [_row(each) for each in worst], folded=True, shown=SHOWN)
    )
    part.tables.append(
        table("Losses by seed", ["seed", *columns], [_row(each) for each in _by_seed(run, claim)], folded=True)
    )
    return part


def _made_by(run: RunEvidence, claim: StepAccuracy) -> Iterator[str]:
    for role, arm in claim.arms().items():
        facts = run.arms[arm][0].start.facts if run.arms.get(arm) else {}
        by = ", ".join(f"{name.replace('_', ' ')} {facts[name]}" for name in _MADE_BY if name in facts)
        yield f"The {role}, {arm}: {by or 'no facts were recorded'}."


def _kind_row(kind: str, errors: Sequence[Errors]) -> list[object]:
    ours, theirs = (float(np.median([getattr(each, arm) for each in errors])) for arm in ("candidate", "peer"))
    return [kind, len(errors), ours, theirs, median_ratio(errors), max((each.ratio for each in errors), key=larger)]


def _row(errors: Errors) -> list[object]:
    return [errors.name, errors.candidate, errors.peer, errors.ratio]


def _by_seed(run: RunEvidence, claim: StepAccuracy) -> Iterator[Errors]:
    """Yield the loss errors of each seed, then those of all seeds together. Seeds that an arm did not finish are left
    out."""
    arms = (claim.candidate, claim.peer, claim.reference)
    series = {}
    for replica, seed in enumerate(claim.seeds()):
        losses = [_losses(run.arms.get(arm, []), replica) for arm in arms]
        if seed in claim.loss_seeds and len({len(each) for each in losses}) == 1 and len(losses[0]):
            series[seed] = losses
            yield loss_errors(str(seed), [losses])
    if len(series) > 1:
        yield loss_errors("all", series.values())


def _losses(executions: Sequence[ArmEvidence], replica: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return executions[replica].series.loss if replica < len(executions) else np.empty(0)
