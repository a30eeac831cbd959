"""Say where two trainings part: at which step, and which pass or update to look at."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.contract.claims import AnyPart
from harness.evidence.run_evidence import ArmEvidence
from harness.judging.sheet import number
from harness.judging.verdict import Figure
from harness.numbers import counted, told_apart

_DIFFER = ("differs", "exceeds_tolerance")


def first_difference(
    reason: str, part: AnyPart, figures: dict[str, Figure], candidate: ArmEvidence, baseline: ArmEvidence
) -> Iterator[str]:
    """Yield at most one sentence: what was equal until then, and what is not. `figures` are the verdict's own."""
    if reason not in _DIFFER or part.kind not in ("trajectory_match", "gradient_match"):
        return
    found = figures.get("first_exceeding_step", figures.get("first_differing_step"))
    step = found.value if found is not None else None
    losses = [execution.series.loss for execution in (candidate, baseline)]
    if not isinstance(step, int) or any(step >= len(series) for series in losses):
        return
    ours, theirs = (float(series[step]) for series in losses)
    if part.kind == "gradient_match":
        if ours == theirs:
            yield (
                f"the losses of step {step} are equal in bits and its gradients are not: look at the backward pass, "
                "and at what is done to gradients after it"
            )
    elif getattr(part, "metric", "loss") == "loss":
        differing = figures.get("first_differing_step")
        before = differing.value if differing is not None else None
        earlier = before if isinstance(before, int) and before < step else None
        yield f"{_seen(step, ours, theirs, earlier)}: {_look_at(step, near=earlier is not None)}"


def after_a_load(reason: str, part: AnyPart) -> Iterator[str]:
    """Yield advice on a resumed training that differs although every tensor that was found had been restored."""
    if part.kind == "resume" and reason in ("differs", "end_differs"):
        yield (
            "right after the load every tensor that is found was as it was saved: look for what training reads and no "
            "checkpoint holds, such as a count that is a plain number on an attribute"
        )


def _seen(step: int, ours: float, theirs: float, earlier: int | None) -> str:
    """Return which loss is the first apart. earlier: a step at which losses differed already, within the tolerance."""
    ratio = ours / theirs if theirs and math.isfinite(ours) else math.nan
    times = f", {number(ratio)} times" if abs(ratio) >= 1.5 or abs(ratio) <= 1 / 1.5 else ""
    mine, other = told_apart(ours, theirs)
    losses = f"{mine}, and {other} in the baseline{times}"
    if earlier is None:
        return f"the first loss apart is that of step {step}: {losses}"
    first = f"the first loss beyond what is allowed is that of step {step}: {losses}"
    return f"{first}; the losses differ from step {earlier} on"


def _look_at(step: int, *, near: bool) -> str:
    """Return where to look. near: until then the losses were within the tolerance, but not equal."""
    agreed = "came near enough" if near else "agreed"
    if step == 0:
        return "nothing was updated before it, so look at the forward pass, and at what the loss is divided by"
    if step == 1:
        return f"the first forward pass {agreed}, so look at the gradients of step 0, and at the first update"
    return (
        f"{counted(step, 'step')} {agreed}, so look at what is not yet other in the first update: a schedule, a count, "
        "an average, gradients that are wrong by little"
    )
