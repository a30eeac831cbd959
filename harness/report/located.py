"""Describe the first difference between two arms as a sentence, and as a table with a row for each part of the step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.contract.schema import AnyPart
from harness.evidence.run_evidence import ArmEvidence
from harness.judging.first_difference import FirstDifference, PathRow, Place
from harness.judging.sheet import number
from harness.judging.verdict import Figure
from harness.numbers import counted, told_apart
from harness.report.text import line

# The functions below describe where two trainings first differ: at which step, and in which pass or update of the step.

_DIFFER = ("differs", "exceeds_tolerance")


def first_difference(
    reason: str, part: AnyPart, figures: dict[str, Figure], candidate: ArmEvidence, baseline: ArmEvidence
) -> Iterator[str]:
    """Yield at most one sentence about the first loss that differs, and about where to look for the cause.

    figures: the figures of the part's verdict.
    """
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
                f"the losses of step {step} are equal in every bit, but the gradients are not: look at the backward "
                "pass, and at what changes gradients after the backward pass"
            )
    elif getattr(part, "metric", "loss") == "loss":
        differing = figures.get("first_differing_step")
        before = differing.value if differing is not None else None
        earlier = before if isinstance(before, int) and before < step else None
        yield f"{_seen(step, ours, theirs, earlier)}: {_look_at(step if earlier is None else earlier)}"


def after_a_load(reason: str, part: AnyPart) -> Iterator[str]:
    """Yield advice if a resumed training differs from the uninterrupted one, but every known tensor was restored."""
    if part.kind == "resume" and reason in ("differs", "end_differs"):
        yield (
            "right after the load, every tensor that the harness found had its saved value: look for state that "
            "training reads and that no checkpoint contains, such as a step counter that is a Python number"
        )


def _seen(step: int, ours: float, theirs: float, earlier: int | None) -> str:
    """Return a description of the first loss that differs by more than the tolerance.

    earlier: an earlier step, the first in which the losses differ within the tolerance. None: there is no such step.
    """
    ratio = ours / theirs if theirs and math.isfinite(ours) else math.nan
    times = f", {number(ratio)} times" if abs(ratio) >= 1.5 or abs(ratio) <= 1 / 1.5 else ""
    mine, other = told_apart(ours, theirs)
    losses = f"{mine}, and {other} in the baseline{times}"
    if earlier is None:
        return f"the losses first differ at step {step}: {losses}"
    first = f"the losses first differ by more than the tolerance at step {step}: {losses}"
    return f"{first}; they already differ from step {earlier} on, within the tolerance"


def _look_at(step: int) -> str:
    """Return where to look for the cause of a difference if the losses of all steps before `step` are equal."""
    if step == 0:
        return "no update came before this step, so look at the forward pass, and at what the loss is divided by"
    if step == 1:
        return "the first forward pass agreed, so look at the gradients of step 0, and at the first update"
    return (
        f"{counted(step, 'step')} agreed, so look for a cause that has no effect yet in the first update: a "
        "schedule, a step counter, a running average, or slightly wrong gradients"
    )


PARTS = {
    "batch": "batch",
    "settings": "settings of optimizer and schedule",
    "generators": "random generators",
    "state": "state before the step",
    "forward": "forward pass",
    "loss": "loss",
    "backward": "backward pass",
    "gradients": "gradients",
    "clip": "gradient clip",
    "update": "update",
}
_SEVERAL = {"settings", "generators", "gradients"}
_ANSWERS = {"equal": "equal", "differs": "differs", "not_seen": "not seen"}
_WHY = {
    "limit": "the limit of time ended it before the step was reached in both arms",
    "observed": "the step ends in other bits while it is observed, or whenever it is executed again",
}


def located(found: FirstDifference) -> str:
    """Return a sentence about the first difference, without a full stop."""
    if found.found == "does_not_repeat":
        steps = counted(found.steps, "step")
        under = " under torch's deterministic algorithms" if found.deterministic else ""
        return f"does not repeat: executed again{under}, both arms are equal in {steps}, with all state that is found"
    if found.found == "not_seen":
        if found.ended is not None:
            arm, how = found.ended
            return f"not seen: {f'arm `{line(arm, 80)}`' if arm else 'the process'} ended: {line(how, 200)}"
        return f"not seen: {_WHY[found.why]}"
    clause = f"arm `{line(found.candidate, 80)}`, step {found.step}: {_equal(found)}{_differing(found)}"
    return clause + (f"; not seen: {counted(found.unseen, 'kernel')} of replayed graphs" if found.unseen else "")


def _equal(found: FirstDifference) -> str:
    differing = [row.part for row in found.path if row.answer == "differs"]
    if differing[:1] == ["batch"]:
        return ""
    if any(part in differing for part in ("settings", "generators", "state")):
        return "the batch is equal; "
    return "batch and state are equal; "


def _differing(found: FirstDifference) -> str:
    row = next(row for row in found.path if row.answer == "differs")
    begins = " ".join([_part(found, row), "differ" if row.part in _SEVERAL else "differs"])
    mine, other = found.places.get(found.candidate), found.places.get(found.baseline)
    where = f"arm `{line(found.baseline, 80)}`"
    if row.part in ("batch", "settings", "generators", "state"):
        clause = f"the {begins} ({line(', '.join(row.names), 200)})"
        if found.between:
            clause += f", written between the steps at {line(', '.join(found.between), 200)}"
        return clause if mine is None else f"{clause}; the first operator to show it is {_called(mine)}"
    if found.typed is not None:
        types = " against ".join(line(each, 40) for each in found.types)
        begins += f": first operator with another data type: {_called(found.typed)}, {types} in {where}"
    if found.how == "writes":
        tensor = line(found.tensor or "", 120)
        ours = f"is last written by {_called(mine)}" if mine else "is not written"
        clause = f"`{tensor}` {ours}, in {where} {f'by {_called(other)}' if other else 'not at all'}"
    elif found.how is None or mine is None or other is None:
        names = line(", ".join(row.names), 200)
        return f"the {begins}" if found.typed else f"the {begins} ({names}), and no operator that was seen explains it"
    elif found.how == "result":
        clause = f"another result{_elements(found)} from equal inputs of {_called(mine)}"
    else:
        clause = f"{_called(mine)} {_given(found, mine, other, where)}"
    return f"the {begins}{'; ' if found.typed else ': '}{clause}"


def _given(found: FirstDifference, mine: Place, other: Place, where: str) -> str:
    if found.how == "numbers":
        ours, theirs = (line(each, 160) for each in found.numbers)
        return f"is given {ours}, in {where} {theirs}"
    clause = f"reads `{line(found.tensor, 120)}`, which differs" if found.tensor else "reads another value"
    if found.numbers:
        clause += f" ({line(found.numbers[0], 40)}, in {where} {line(found.numbers[1], 40)})"
    made = [(arm, place.made_at) for arm, place in (("here", mine), (f"in {where}", other)) if place.made_at]
    if made:
        clause += ", made " + " and ".join(f"{arm} at {line(', '.join(lines), 300)}" for arm, lines in made)
    return clause if other.line == mine.line else f"{clause}; in {where} it is read at {line(other.line, 200)}"


def _called(place: Place | None) -> str:
    if place is None:
        return ""
    module = f" in `{line(place.module, 120)}`" if place.module else ""
    return f"`{line(place.operator, 80)}`{module} at {line(place.line or 'no line of the user', 200)}"


def _elements(found: FirstDifference) -> str:
    if found.elements is None or found.of is None:
        return ""
    by = ""
    if found.largest:
        power = math.log2(found.largest)
        by = f", by 2^{power:.0f}" if power == round(power) else f", by {found.largest:.3g} at most"
    return f" ({found.elements:,} of {counted(found.of, 'element')}{by})"


def path_rows(found: FirstDifference) -> list[tuple[str, str, str]]:
    """Return a row for each part of the step: its name, whether both arms are equal in this part, and what differs."""
    return [(_part(found, row), _ANSWERS[row.answer], _what(row)) for row in found.path]


def _part(found: FirstDifference, row: PathRow) -> str:
    """Return the name of a part of the step, for readers.

    If autograd made no backward pass, all operators belong to the forward pass, which then has the name `step`.
    """
    backward = next((each for each in found.path if each.part == "backward"), None)
    is_whole = backward is not None and not backward.operators and not backward.alone
    return "step" if row.part == "forward" and is_whole and row.operators else PARTS[row.part]


def _what(row: PathRow) -> str:
    clause = [line(", ".join(row.names), 300)] if row.names else []
    if row.alone:
        clause.append(f"{counted(row.alone, 'operator')} of one arm alone")
    return "; ".join(clause)
