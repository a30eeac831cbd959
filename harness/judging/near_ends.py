"""Check that both arms change every tensor from start to end by nearly the same amounts, except for rounding.

Losses do not show faults in averaged weights, running statistics, parameters that few batches use, or the last update.
But a distance between the ends alone proves nothing. Where an optimizer divides by a tiny number, as Adam does for a
bias before a norm, rounding changes a tensor as much as a gradient does. A control shows this effect: a baseline whose
start was changed by one rounding error. If the control shows that rounding alone changes a tensor beyond the bound,
this tensor does not violate the claim. A small distance within the bound may also come from a bug, such as an average
that is updated one step late. Even such a distance must therefore not exceed what rounding does to most parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.contract.guards import Ends
from harness.evidence.arm_records import MovedApart, State
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.context import end_of
from harness.judging.controls import AS_ROUNDING, Rounding, measured_rounding, require_nudged_alone
from harness.judging.end_state import roles_of
from harness.judging.sheet import Sheet, number, settle, some
from harness.numbers import counted

OF_SIZE = 1e-6  # share of a tensor's norm that rounding explains if the updates are far smaller than the parameter
OF_STEP = 2.0**-24  # share of the norm that rounding explains per step, if each step rounds the float32 tensor once
NOT_READ = ("optimizer", "generators")
FLOATING = ("float", "bfloat", "complex")  # prefixes of the names of floating-point data types


class Tensor(NamedTuple):
    """Distances (L2 norms) of one tensor. apart: between the ends of candidate and baseline. moved: between the start
    and the end of the baseline. control: between the ends of control and baseline. size: the L2 norm of the tensor at
    the end of the candidate."""

    name: str
    apart: float
    moved: float
    size: float
    control: float

    @property
    def share(self) -> float:
        """Return the distance between the arms' ends, divided by the baseline's change from start to end. If the change
        is 0 or not finite, return infinity for a distance above 0, and 0 for no distance."""
        return self.apart / self.moved if 0 < self.moved < math.inf else (math.inf if self.apart else 0.0)

    def rounding(self, ratio: float) -> float:
        """Return the largest distance of this tensor that rounding excuses. ratio: the result of `Rounding.capped`."""
        return _largest_finite(AS_ROUNDING * ratio * self.control, OF_SIZE * self.size)

    def is_explained(self, rounding: Rounding, steps: int) -> bool:
        """Return True if the distance is at most what rounding does to most parameters, at most one rounding error per
        step (`OF_STEP`), or at most `OF_SIZE` of the tensor's norm."""
        floor = max(OF_SIZE, OF_STEP * steps) * self.size
        return self.apart <= _largest_finite(rounding.reach(self), floor)


def _largest_finite(*distances: float) -> float:
    """Return the largest finite distance, or 0 if there is none."""
    return max((each for each in distances if each < math.inf), default=0.0)


def require_near_ends(
    demanded: Ends,
    ours: str,
    candidate: ArmEvidence,
    theirs: str,
    baseline: ArmEvidence,
    control: ArmEvidence,
    sheet: Sheet,
    *,
    same_system: bool = True,
) -> str:
    """Return the end of a sentence that names tensors whose different ends rounding alone may explain, and tensors that
    only one arm has.

    Raises FAIL if a tensor changes differently in the two arms, beyond the bound and beyond rounding. Raises
    INCONCLUSIVE if rounding changes every parameter as much as training does, or if the baseline has state that the
    candidate does not have.
    """
    arm = baseline.start.arm
    require_nudged_alone(control, theirs, baseline, sheet)
    made, nudged = _of(candidate, arm), _of(control, arm)
    _require_all(ours, candidate, made)
    alone = sorted(made.tensors.keys() - nudged.tensors.keys())
    if alone:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"control {control.start.arm} lacks {len(alone)} tensors that the compared arm has: {some(alone)}",
        )
    tensors = [
        Tensor(name, apart, moved, size, nudged.tensors[name][0]) for name, (apart, moved, size) in made.tensors.items()
    ]
    beyond = [each for each in tensors if not each.share <= demanded.at_most]
    rounding = measured_rounding(_parameters(tensors))
    ratio = rounding.capped(demanded.at_most)
    wrong = sorted((each for each in beyond if not each.apart <= each.rounding(ratio)), key=_order)
    reported = [each for each in tensors if each not in beyond or each in wrong]
    furthest = min(reported, key=_order, default=None)
    unit = "of the baseline's movement"
    sheet.count("end_distance_tensors", len(tensors))
    sheet.figure("rounding_tensors", len(beyond) - len(wrong), "tensors")
    sheet.figure("rounding_ratio", ratio)
    sheet.figure("end_distance", None if furthest is None else furthest.share, unit)
    if furthest is not None:
        sheet.figure("end_distance_tensor", furthest.name)
    worst = wrong[0] if wrong else furthest
    if worst is not None and not sheet.meets("end_distance", worst.share, "at most", demanded.at_most, unit):
        settle(reasons.ENDS_APART, _message(demanded, ours, theirs, wrong))
    require_equal_updates(ours, candidate, theirs, baseline)
    # Training must change at least one parameter by more than rounding explains. Otherwise an untrained parameter
    # would not be noticed. If all ends have equal bits, this check is not needed.
    apart = any(each.apart for each in tensors)
    if apart and not any(each.rounding(ratio) < each.moved for each in _parameters(tensors)):
        settle(
            reasons.ENDS_UNDECIDED,
            f"control {control.start.arm}, whose start differs from that of {theirs} only by a rounding, ends so far "
            f"from {theirs} in every parameter that an untrained parameter would not be noticed",
        )
    # If rounding did not change the control's ends, it is unknown what rounding explains, so tensors within the bound
    # are not checked.
    within = [each for each in tensors if each not in beyond] if rounding.share else []
    counts = _of_counts(baseline)
    within = [each for each in within if each.name not in counts]
    unexplained = [each for each in within if not each.is_explained(rounding, len(candidate.series.loss))]
    sheet.figure("unexplained_tensors", len(unexplained), "tensors")
    if unexplained:
        sheet.leave_open(reasons.ENDS_UNEXPLAINED, _unexplained(demanded, ours, theirs, rounding, unexplained))
    uncompared = require_all_compared(ours, candidate, theirs, baseline, made, same_system=same_system)
    excused = [each.name for each in beyond]
    if not excused:
        return uncompared
    rounded = f"; rounding alone may explain the different ends of {counted(len(excused), 'tensor')}: {some(excused)}"
    return f"{rounded}{uncompared}"


def _order(tensor: Tensor) -> float:
    """Return a sort key that puts the tensors with the largest distances first, and NaN before all others."""
    return -math.inf if math.isnan(tensor.share) else -tensor.share


def _of_counts(execution: ArmEvidence) -> set[str]:
    """Return the names of tensors with several integers or flags, such as the number of tokens of each expert. Rounding
    changes an integer by at least 1 or not at all, so the distances of such tensors do not measure rounding."""
    forms = (execution.start.state and execution.start.state.forms) or {}
    return {
        name for name, form in forms.items() if not form.startswith(FLOATING) and not form.endswith((" []", " [1]"))
    }


def _parameters(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each for each in tensors if each.name.startswith("parameters ")]


def _message(demanded: Ends, ours: str, theirs: str, wrong: list[Tensor]) -> str:
    first = wrong[0]
    if first.moved:
        far = (
            f"{first.name} ends with a difference of {number(first.share)} of its movement in {theirs}; at most "
            f"{number(demanded.at_most)} is allowed, and a rounding at the start causes "
            f"{number(first.control / first.moved)}"
        )
    else:
        far = f"{ours} moves {first.name} by {number(first.apart)}, but {theirs} does not move it"
    others = (
        f"; the bound is exceeded in {len(wrong)} tensors: {some([each.name for each in wrong])}"
        if len(wrong) > 1
        else ""
    )
    return f"{ours} and {theirs} have losses within the bound, but {far}{others}"


def _unexplained(demanded: Ends, ours: str, theirs: str, rounding: Rounding, tensors: list[Tensor]) -> str:
    first, *others = sorted(tensors, key=lambda each: -each.share)
    more = (
        f"; the same holds for {len(tensors)} tensors: {some([each.name for each in (first, *others)])}"
        if others
        else ""
    )
    return (
        f"{ours} and {theirs} have losses within the bound, and {first.name} ends with a difference of "
        f"{number(first.share)} of its movement in {theirs}: {number(demanded.at_most)} is allowed, but rounding does "
        f"not explain the difference; rounding causes {number(rounding.ratio * rounding.share)} in the median "
        f"parameter{more}"
    )


def _of(execution: ArmEvidence, arm: str) -> MovedApart:
    found = next((each for each in end_of(execution).moved_apart or [] if each.arm == arm), None)
    if found is None:
        settle(
            reasons.EVIDENCE_MISSING,
            f"the distance between the ends of {execution.start.arm} and {arm} was not recorded",
        )
    return found


def _require_all(ours: str, candidate: ArmEvidence, made: MovedApart) -> None:
    """Raise ERROR if a tensor at the end is neither compared nor listed as uncompared, or no parameter is compared."""
    state = end_of(candidate).state
    named = {f"{category} {name}" for category, found in (state.digests if state else {}).items() for name in found}
    lost = {name for name in named if not name.startswith(NOT_READ)} - {*made.tensors, *made.uncompared}
    if lost:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"at the end of {ours}, {len(lost)} tensors were not compared: {some(sorted(lost))}",
        )
    if not any(name.startswith("parameters ") for name in made.tensors):
        settle(reasons.EVIDENCE_MISSING, f"no parameter of {ours} was compared at its end")


# Prefixes of the names of optimizer state, and of tensors outside of modules and optimizers.
OPTIMIZER, LOOSE = "optimizer ", "tensors "
# suffix of the name under which BatchNorm counts its batches; another check compares these counts
COUNT = "num_batches_tracked"
STEP = ".step"  # suffix of the name of an optimizer's count of updates

Digests = dict[str, str]


def require_all_compared(
    ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence, made: MovedApart, *, same_system: bool
) -> str:
    """Return the end of a sentence that names tensors that only one arm has, or "" if they were not recorded.

    Raises INCONCLUSIVE if the baseline has state that the candidate does not have. State is not compared in this way if
    two systems train the arms, because their state has different names.
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
            f"{ours} and {theirs} have losses within the bound, but for {counted(len(left), 'tensor')} of {theirs}, "
            f"{ours} has no tensor with the same name and shape at the end: {some(left)}; give these tensors equal "
            "names in the `state` of both arms; name the parts of a flat tensor by views",
        )
    alone = {theirs: made.missing, ours: own}
    said = [f"{counted(len(names), 'tensor')} of {whose}: {some(names)}" for whose, names in alone.items() if names]
    return (
        f"; not compared, because the other arm has no tensor with the same name, type and shape: {', '.join(said)}"
        if said
        else ""
    )


def _require_nothing_derived(
    ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence, left: Sequence[str]
) -> None:
    """Raise FAIL if the baseline keeps an average or a copy of its parameters, and the candidate does not.

    left: tensors that only the baseline has. If the candidate created other tensors, one of them may be the average
    under another name. Then nothing is checked.
    """
    derived = [name for name in left if roles_of(end_of(baseline)).get(name.removeprefix(LOOSE)) == "derived"]
    if derived and not roles_of(end_of(candidate)).keys() - roles_of(end_of(baseline)).keys():
        settle(
            reasons.END_DIFFERS,
            f"{ours} and {theirs} have losses within the bound, but {ours} ends without "
            f"{counted(len(derived), 'tensor')} that {theirs} computed from its parameters: {some(derived)}",
        )


def _is_told_otherwise(name: str, candidate: ArmEvidence, baseline: ArmEvidence, made: MovedApart) -> bool:
    """Return True if the candidate need not have this tensor of the baseline. One of three conditions is enough: the
    tensor is a moment that the candidate keeps in another format, or it did not change, or it always equals another
    tensor that is compared."""
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
    """Return the names of tensors outside of modules and optimizers that a step created and no later step changed."""
    still = end_of(execution).still or []
    return [*still, *(name for name, role in roles_of(end_of(execution)).items() if role == "table")]


def _is_of_another_format(name: str, candidate: ArmEvidence, made: MovedApart) -> bool:
    """Return True if the candidate's optimizer keeps this kind of state in another type or shape. Also return True if
    no state of optimizers was compared, because the optimizers are different."""
    kind = name.partition(" (")[0].rpartition(".")[2]
    names = _digests(end_of(candidate).state)
    has_kind = any(each.startswith(OPTIMIZER) and each.rpartition(".")[2] == kind for each in names)
    return has_kind or not any(each.startswith(OPTIMIZER) for each in made.tensors)


def require_equal_updates(ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence) -> None:
    """Raise FAIL if the optimizers of the two arms counted different numbers of updates."""
    apart = sorted(_updates_apart(ours, candidate, theirs, baseline))
    if apart:
        settle(
            reasons.END_DIFFERS,
            f"{ours} and {theirs} have losses within the bound, but their optimizers counted different numbers of "
            f"updates: {some(apart)}",
        )


def _updates_apart(ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence) -> Iterator[str]:
    one, other = end_of(candidate).state, end_of(baseline).state
    mine, their = (one.numbers if one else None) or {}, (other.numbers if other else None) or {}
    our_digests, their_digests = _digests(one), _digests(other)
    for name in (our_digests.keys() & their_digests.keys()) | (mine.keys() & their.keys()):
        if not (name.startswith(OPTIMIZER) and name.endswith(STEP)):
            continue
        if name in mine and name in their:  # compare the values, because the data types of the counts may differ
            if mine[name] != their[name]:
                yield f"{name} ends at {number(mine[name])} in {ours} and at {number(their[name])} in {theirs}"
        elif our_digests[name] != their_digests[name]:  # a count that is a Python number has only a digest
            yield f"{name} ends with different numbers"


def _digests(state: State | None) -> Digests:
    """Return the digests of a state. The keys are `category name`."""
    found = {} if state is None else state.digests
    return {f"{category} {name}": digest for category, named in found.items() for name, digest in named.items()}
