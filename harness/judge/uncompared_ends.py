"""Within a bound: what of the ends no other end was compared with, and the updates that optimizers counted.

Movements are compared by name and shape. What the candidate alone has may be its optimization's own. What the baseline
alone has is state that the claim would say nothing of, unless it is a table, or goes by another name as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.evidence.arm_records import MovedApart, State
from harness.evidence.run_evidence import ArmEvidence
from harness.judge import reasons
from harness.judge.context import end_of
from harness.judge.end_state import roles_of
from harness.judge.sheet import number, settle, some
from harness.numbers import counted

OPTIMIZER, LOOSE = "optimizer ", "tensors "  # begin the names of what is an optimizer's, or hangs loose
COUNT = "num_batches_tracked"  # ends the name of BatchNorm's count, which is compared by itself
STEP = ".step"  # ends the name of an optimizer's count of updates

Digests = dict[str, str]


def require_all_compared(
    ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence, made: MovedApart, *, same_system: bool
) -> str:
    """What was compared with nothing, as a sentence's tail; nothing where that was not recorded, as it was not before.

    Settles INCONCLUSIVE where the baseline has state that the candidate has not. Another system has other names.
    """
    if made.missing is None:
        return ""
    left = [name for name in made.missing if same_system and not _is_told_otherwise(name, candidate, baseline, made)]
    own = [name for name in made.uncompared if not name.endswith(COUNT)]
    if left and not own:
        _require_nothing_derived(ours, candidate, theirs, baseline, left)
    if left:
        settle(
            reasons.ENDS_UNCOMPARED,
            f"{ours} and {theirs} have losses within the bound, and {ours} ends with none of the name and shape of "
            f"{counted(len(left), 'tensor')} of {theirs}: {some(left)}; name them alike in both arms' `state`, a flat "
            "one by its views",
        )
    alone = {theirs: made.missing, ours: own}
    said = [f"of {whose} {counted(len(names), 'tensor')}: {some(names)}" for whose, names in alone.items() if names]
    return f"; compared with nothing, for want of one of its name, type and shape, {', '.join(said)}" if said else ""


def _require_nothing_derived(
    ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence, left: Sequence[str]
) -> None:
    """Settle FAIL where the baseline made averages or copies of its parameters, and the candidate made no tensor that
    could be one of them under another name.
    """
    derived = [name for name in left if roles_of(end_of(baseline)).get(name.removeprefix(LOOSE)) == "derived"]
    if derived and not roles_of(end_of(candidate)).keys() - roles_of(end_of(baseline)).keys():
        settle(
            reasons.END_DIFFERS,
            f"{ours} and {theirs} have losses within the bound, and {ours} ends without "
            f"{counted(len(derived), 'tensor')} that {theirs} made of its parameters: {some(derived)}",
        )


def _is_told_otherwise(name: str, candidate: ArmEvidence, baseline: ArmEvidence, made: MovedApart) -> bool:
    """Whether it need not be compared under this name: moments of another format, a table, what `state` names again."""
    if name.startswith(OPTIMIZER):
        return _is_of_another_format(name, candidate, made)
    start, end = _digests(baseline.start.state), _digests(end_of(baseline).state)
    if name not in end:
        return False
    if start.get(name) == end[name] or name in {f"{LOOSE}{each}" for each in _unchanged(baseline)}:
        return True
    again = [other for other in made.tensors if other.startswith(LOOSE) and end.get(other) == end[name]]
    return any(start.get(other) == start.get(name) for other in again)


def _unchanged(execution: ArmEvidence) -> list[str]:
    """Return the loose tensors that came with a step and that no later one changed; `still` in older evidence."""
    still = end_of(execution).still or []
    return [*still, *(name for name, role in roles_of(end_of(execution)).items() if role == "table")]


def _is_of_another_format(name: str, candidate: ArmEvidence, made: MovedApart) -> bool:
    """Whether the candidate's optimizer keeps such state in another type or shape, for other tensors, or is another
    one altogether: no state of it was compared.
    """
    kind = name.partition(" (")[0].rpartition(".")[2]
    names = _digests(end_of(candidate).state)
    has_kind = any(each.startswith(OPTIMIZER) and each.rpartition(".")[2] == kind for each in names)
    return has_kind or not any(each.startswith(OPTIMIZER) for each in made.tensors)


def require_equal_updates(ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence) -> None:
    """Settle FAIL where optimizers of both arms counted other numbers of updates."""
    apart = sorted(_updates_apart(candidate, baseline))
    if apart:
        settle(
            reasons.END_DIFFERS,
            f"{ours} and {theirs} have losses within the bound, and their optimizers counted other numbers of updates: "
            f"{some(apart)}",
        )


def _updates_apart(candidate: ArmEvidence, baseline: ArmEvidence) -> Iterator[str]:
    one, other = end_of(candidate).state, end_of(baseline).state
    mine, their = (one.numbers if one else None) or {}, (other.numbers if other else None) or {}
    our_digests, their_digests = _digests(one), _digests(other)
    for name in (our_digests.keys() & their_digests.keys()) | (mine.keys() & their.keys()):
        if not (name.startswith(OPTIMIZER) and name.endswith(STEP)):
            continue
        if name in mine and name in their:  # by value: one may be a float where the other is an integer
            if mine[name] != their[name]:
                yield f"{name} ends at {number(mine[name])}, not at {number(their[name])}"
        elif our_digests[name] != their_digests[name]:  # Python's numbers are kept as text
            yield f"{name} ends at another number"


def _digests(state: State | None) -> Digests:
    """By `category name`."""
    found = {} if state is None else state.digests
    return {f"{category} {name}": digest for category, named in found.items() for name, digest in named.items()}
