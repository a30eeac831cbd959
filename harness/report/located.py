"""Word where two arms part first: a sentence, and the path through the step as rows of a table."""

from __future__ import annotations

import math

from harness.judging.first_difference import FirstDifference, PathRow, Place
from harness.numbers import counted
from harness.report.text import line

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
    """Return the answer as one sentence, without a full stop."""
    if found.found == "does_not_repeat":
        steps = counted(found.steps, "step")
        under = " under torch's deterministic algorithms" if found.deterministic else ""
        return f"does not repeat: executed again{under}, both arms are equal in {steps}, with all state that is found"
    if found.found == "not_seen":
        if found.ended is not None:
            arm, how = found.ended
            return f"not seen: {f'arm `{line(arm, 80)}`' if arm else 'the process'} ended: {line(how, 200)}"
        return f"not seen: {_WHY[found.why]}"
    told = f"arm `{line(found.candidate, 80)}`, step {found.step}: {_equal(found)}{_differing(found)}"
    return told + (f"; not seen: {counted(found.unseen, 'kernel')} of replayed graphs" if found.unseen else "")


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
        told = f"the {begins} ({line(', '.join(row.names), 200)})"
        if found.between:
            told += f", written between the steps at {line(', '.join(found.between), 200)}"
        return told if mine is None else f"{told}; the first operator to show it is {_called(mine)}"
    if found.how == "writes":
        tensor = line(found.tensor or "", 120)
        ours = f"is last written by {_called(mine)}" if mine else "is not written"
        theirs = f"by {_called(other)}" if other else "not at all"
        return f"the {begins}: `{tensor}` {ours}, in {where} {theirs}"
    if found.how is None or mine is None or other is None:
        return f"the {begins} ({line(', '.join(row.names), 200)}), and no operator that was seen explains it"
    if found.how == "result":
        return f"the {begins}: another result{_elements(found)} from equal inputs of {_called(mine)}"
    return f"the {begins}: {_called(mine)} {_given(found, mine, other, where)}"


def _given(found: FirstDifference, mine: Place, other: Place, where: str) -> str:
    if found.how == "numbers":
        ours, theirs = (line(each, 160) for each in found.numbers)
        return f"is given {ours}, in {where} {theirs}"
    told = f"reads `{line(found.tensor, 120)}`, which differs" if found.tensor else "reads another value"
    if found.numbers:
        told += f" ({line(found.numbers[0], 40)}, in {where} {line(found.numbers[1], 40)})"
    made = [(arm, place.made_at) for arm, place in (("here", mine), (f"in {where}", other)) if place.made_at]
    if made:
        told += ", made " + " and ".join(f"{arm} at {line(', '.join(lines), 300)}" for arm, lines in made)
    return told if other.line == mine.line else f"{told}; in {where} it is read at {line(other.line, 200)}"


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
    """Return the path through the step: its part, how both arms compare there, and what differs."""
    return [(_part(found, row), _ANSWERS[row.answer], _what(row)) for row in found.path]


def _part(found: FirstDifference, row: PathRow) -> str:
    """Return the name of a part of the step. Where autograd ran no backward pass, all operators are one part."""
    backward = next((each for each in found.path if each.part == "backward"), None)
    is_whole = backward is not None and not backward.operators and not backward.alone
    return "step" if row.part == "forward" and is_whole and row.operators else PARTS[row.part]


def _what(row: PathRow) -> str:
    told = [line(", ".join(row.names), 300)] if row.names else []
    if row.alone:
        told.append(f"{counted(row.alone, 'operator')} of one arm alone")
    return "; ".join(told)
