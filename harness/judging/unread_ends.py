"""Compare tensors that steps created and that no step reads, such as logs. A log that only one arm has is only
reported. If another unread tensor exists in only one arm, the claim may stay undecided."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from harness.evidence.arm_records import ArmEnd, Role
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.context import end_of
from harness.judging.end_state import LOOSE, roles_of
from harness.judging.sheet import Sheet, some
from harness.numbers import counted

_DIGITS, _PLACES = re.compile(r"(\d+)"), re.compile(r"(\.\d+)+$")
_SAID_BY = "trajectory_match"  # only claims of this kind name the unread tensors in their message
_WORDS: dict[Role, str] = {"log": "log", "mixed": "tensor", "unseen": "tensor"}


def unread_apart(executions: Mapping[str, ArmEvidence], sheet: Sheet, *, kind: str, bits: bool) -> str:
    """Return the end of a sentence that names the unread tensors in which executions differ from the first execution.

    bits: True if the claim requires equal bits at the end. The claim is then left undecided in two cases. First, only
    one execution has a tensor that is computed from parameters and batches, and neither execution replays a capture (no
    replay appends a tensor to a list). Second, executions differ in a tensor, and it is unknown from what the tensor
    was computed. If `bits` is False, the claim is left undecided only if one execution lacks a tensor of unknown
    origin.
    """
    (reference_name, reference), *others = executions.items()
    said, number = list[str](), 0
    for name, execution in others:
        ours, theirs = end_of(execution), end_of(reference)
        mine, other = _loose(ours), _loose(theirs)
        roles = {each: role for each in mine.keys() | other.keys() if (role := _role(each, ours, theirs)) in _WORDS}
        apart = [each for each in roles if mine.get(each) != other.get(each)]
        alone = {reference_name: [each for each in apart if each not in mine]}
        alone[name] = [each for each in apart if each not in other]
        number += len(apart)
        for whose, names in alone.items():
            said += [f"only {whose} keeps {_counted(names, roles)}"] if names else []
            mixed = [each for each in names if roles[each] == "mixed"]
            if bits and mixed and not (ours.replays or theirs.replays):
                sheet.leave_open(
                    reasons.ENDS_UNCOMPARED,
                    f"only {whose} keeps {_counted(mixed, roles)}, computed from parameters and batches, and no "
                    "watched step reads this state: keep it in both arms, or in neither",
                )
        changed = [each for each in apart if each in mine and each in other]
        said += (
            [f"{name} and {reference_name} end with different values of {_counted(changed, roles)}"] if changed else []
        )
        unseen = [each for each in apart if roles[each] == "unseen" and (bits or each not in changed)]
        if unseen:
            sheet.leave_open(
                reasons.ENDS_UNCOMPARED,
                f"{name} and {reference_name} end differently in {_counted(unseen, roles)}, and no watched "
                "step shows from which tensors this state is computed: create it before the first step, or name it in "
                "the `state` of both arms",
            )
    if number:
        sheet.figure("unread_apart", number, "tensors")
    return f"; in tensors that no step reads: {', and '.join(said)}" if said and bits and kind == _SAID_BY else ""


def _counted(names: Iterable[str], roles: Mapping[str, Role]) -> str:
    """Return a text such as `2 logs: a, b`: number and names of tensors. Items of one list appear as one name."""
    names = list(names)
    words = {_WORDS[roles[each]] for each in names}
    return f"{counted(len(names), 'log' if words == {'log'} else 'tensor')}: {some(_holders(names))}"


def _holders(names: Iterable[str]) -> list[str]:
    """Return the names in natural order (2 before 10). Items of one list become one entry with their number."""
    names = list(names)
    members = Counter(_PLACES.sub("", name) for name in names)
    shown = dict[str, None]()
    for name in names:
        holder = _PLACES.sub("", name)
        shown[name if members[holder] == 1 else f"{holder} ({members[holder]})"] = None
    return sorted(shown, key=lambda name: [int(part) if part.isdecimal() else part for part in _DIGITS.split(name)])


def _role(name: str, *ends: ArmEnd) -> Role | None:
    """Return the recorded role of a loose tensor: `mixed`, `log` or `unseen`. Return None for any other role, and if
    the tensor belongs to the compared state in one of `ends`."""
    if any(end.state is not None and name in end.state.digests.get(LOOSE, {}) for end in ends):
        return None
    found = {roles_of(end).get(name) for end in ends}
    ranked: list[Role] = ["mixed", "log", "unseen"]
    return next((role for role in ranked if role in found), None)


def _loose(end: ArmEnd) -> dict[str, str]:
    """Return the digests of all tensors outside modules and optimizers in the record of an execution's end, by name."""
    of_state = {} if end.state is None else end.state.digests.get(LOOSE, {})
    return of_state if end.loose is None else {**of_state, **end.loose.unread}
