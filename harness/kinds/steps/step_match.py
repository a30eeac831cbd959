"""Judge `step_match`: from the same state, the candidate's step equals the reference's step except for rounding.

The yardstick is an arm that executes the reference in the candidate's precision. The yardstick's errors show how large
rounding errors are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.evidence.arm_records import ComparedStep
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, executed
from harness.judging.sheet import Sheet, number, require_steps, settle
from harness.judging.verdict import Judgement
from harness.kinds.steps.model import StepMatch

EVALUATED, UPDATED = ("loss", "norms", "gradients"), ("exp_avg", "exp_avg_sq", "parameters")
OF_TENSORS = ("gradients", *UPDATED)  # the quantities that are compared for each trainable tensor
_WORDS = {
    "loss": "the loss",
    "norms": "the norm of",
    "gradients": "the gradient of",
    "exp_avg": "the first moment of",
    "exp_avg_sq": "the second moment of",
    "parameters": "the parameter",
}


@dataclass(frozen=True)
class Held:
    """The error of one quantity at one step, and its bound."""

    step: int
    quantity: str
    tensor: str
    error: float
    bound: float

    @property
    def name(self) -> str:
        """Return the compared quantity in words, for a sentence."""
        words = _WORDS[self.quantity]
        return words if self.quantity == "loss" else f"{words} {self.tensor}"

    @property
    def times(self) -> float:
        """Return the error divided by its bound; infinite if the error is NaN or negative."""
        return self.error / self.bound if self.error >= 0 else math.inf


def judge(part: StepMatch, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: a replayed capture, finite losses, equal
    start and batches, that every tensor was compared, the bounds, enough steps, the guards, the end states."""
    run = context.only_run("step_match")
    arms = {role: executed(run, name) for role, name in part.arms().items()}
    candidate = arms["candidate"]
    comparison = Comparison(part, context, sheet)
    comparison.captured(candidate)
    held = list(_held(part, candidate.compared_steps))
    _note(part, candidate, held, sheet)

    named = {f"{role} {part.arms()[role]}": execution for role, execution in arms.items()}
    # Compare the starts of yardstick and candidate. Both arms have the same precision, so equal parameters have equal
    # digests.
    roles = {name: role for name, role in zip(named, arms, strict=True) if role != "candidate"}
    group = Group(dict(reversed(named.items())), roles)
    comparison.begin(group)
    _require_every_tensor(candidate)
    _require_within(held, sheet)
    _require_steps(part, candidate, sheet)
    comparison.end(group)
    worst = max(held, key=lambda entry: entry.times)
    return comparison.held(
        f"{len(candidate.compared_steps)} steps of {part.candidate} are equal to those of {part.reference} within "
        f"rounding: the largest error, of {worst.name} at step {worst.step}, takes {number(worst.times)} of its bound"
    )


def _held(part: StepMatch, steps: Sequence[ComparedStep]) -> Iterator[Held]:
    """Yield each error with its bound. The bounds of loss, norms and gradients become larger if the errors of the
    yardstick (the reference in the candidate's precision) are large."""
    seen: dict[str, float] = {}
    for step in steps:
        if (step.reference, step.yardstick) != (part.reference, part.yardstick):
            settle(
                reasons.EVIDENCE_MISSING,
                f"step {step.step} was compared with {step.reference} and {step.yardstick}, but the claim "
                "names other arms under `reference` and `yardstick`",
            )
        if [reading.quantity for reading in step.readings] != [*EVALUATED, *UPDATED]:
            settle(reasons.EVIDENCE_MISSING, f"not every quantity was compared at step {step.step}")
        for reading in step.readings:
            bound = part.max_update_error
            if reading.quantity in EVALUATED:
                if reading.yardstick is None or not math.isfinite(reading.yardstick):
                    settle(
                        reasons.EVIDENCE_MISSING,
                        f"the arm under `yardstick` has no finite {reading.quantity} at step {step.step}",
                    )
                seen[reading.quantity] = max(seen.get(reading.quantity, 0.0), reading.yardstick)
                bound = max(part.max_evaluation_error, part.times_yardstick * seen[reading.quantity])
            yield Held(step.step, reading.quantity, reading.tensor, reading.error, bound)


def _note(part: StepMatch, candidate: ArmEvidence, held: Sequence[Held], sheet: Sheet) -> None:
    sheet.count("steps", len(candidate.compared_steps))
    sheet.figure("steps_run", len(candidate.series.loss), "steps")
    tensors = [
        reading.tensors
        for step in candidate.compared_steps
        for reading in step.readings
        if reading.quantity in OF_TENSORS
    ]
    sheet.count("tensors", min(tensors, default=0))
    for quantity in (*EVALUATED, *UPDATED):
        entries = [entry for entry in held if entry.quantity == quantity]
        if entries:
            worst = max(entries, key=lambda entry: entry.times)
            sheet.figure(f"{quantity}_error", worst.error)
            sheet.figure(f"{quantity}_error_over_bound", worst.times)
            sheet.figure(f"{quantity}_error_step", worst.step, "step")
    sheet.figure("update_bound", part.max_update_error)


def _require_every_tensor(candidate: ArmEvidence) -> None:
    """End the judgement unless every quantity was compared at each step. Gradients, moments and parameters must have
    been compared for every trainable tensor.

    If no tensor were compared, the error would be zero, and zero is within any bound. No tensor is exempt, because the
    reference requires a gradient and both moments for every parameter.
    """
    trained = candidate.start.trainable_tensors
    for step in candidate.compared_steps:
        for reading in step.readings:
            if reading.quantity not in OF_TENSORS:
                if reading.tensors == 0:
                    settle(
                        reasons.VACUOUS_NOTHING_COMPARED,
                        f"at step {step.step}, no value of the {reading.quantity} was compared",
                    )
            elif reading.tensors < trained:
                settle(
                    reasons.TENSORS_MISSING,
                    f"at step {step.step}, {reading.quantity} of {reading.tensors} of {trained} trainable tensors were "
                    "compared",
                )
            elif reading.tensors > trained:
                settle(
                    reasons.EVIDENCE_INCONSISTENT,
                    f"at step {step.step}, {reading.quantity} of {reading.tensors} tensors were compared, but "
                    f"{trained} tensors are trainable",
                )


def _require_within(held: Sequence[Held], sheet: Sheet) -> None:
    worst = max(held, key=lambda entry: entry.times, default=None)
    if worst is None or sheet.meets(
        f"{worst.quantity}_error_over_bound", worst.times, "at most", 1, "of the error allowed"
    ):
        return
    beyond = [entry for entry in held if not entry.times <= 1]
    first = beyond[0]
    sheet.figure("first_exceeding_step", first.step, "step")
    sheet.figure("first_exceeding_quantity", first.quantity)
    sheet.figure("first_exceeding_tensor", first.tensor)
    sheet.figure("exceeded", "max_evaluation_error" if first.quantity in EVALUATED else "max_update_error")
    sheet.figure("largest_error_over_bound", worst.times)
    others = ""
    if len(beyond) > 1:
        others = (
            f"; the worst of {len(beyond)} errors, of {worst.name} at step {worst.step}, is {number(worst.times)} "
            "times its bound"
        )
    settle(
        reasons.EXCEEDS_TOLERANCE,
        f"at step {first.step}, the error of {first.name} is {number(first.error)}, which is {number(first.times)} "
        f"times its bound{others}",
    )


def _require_steps(part: StepMatch, candidate: ArmEvidence, sheet: Sheet) -> None:
    compared, run = [step.step for step in candidate.compared_steps], len(candidate.series.loss)
    if compared != list(range(run)):
        settle(
            reasons.EVIDENCE_MISSING,
            f"{len(compared)} of {run} steps were compared, but all must be compared in their order",
        )
    require_steps(run, part.steps, sheet)
