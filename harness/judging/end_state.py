"""Check the state at the end of a training: finite in every claim, and equal where a claim requires equal bits."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from harness.evidence.arm_records import CAPTURES_ITSELF, COMPARED, NOT_FINITE, ArmEnd, EndDifference, Role, State
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.context import end_of
from harness.judging.sheet import OF_GROUP, Sheet, number, settle, some
from harness.numbers import counted

# If a count (an integer, such as the number of a step) has different values at the ends of two arms, the claim is
# normally violated. The code below allows the difference for two kinds of count: counts that the claim lists under
# `may_end_apart`, and Python numbers that no replay changes.

# matches the path to an entry in the optimizer's state of one parameter
_OF_STATE = re.compile(r"(?:^|[. ])state\.\d+(\..+)")
EXCUSED_ENDS, IDLE_EXCUSES = "excused_ends", "idle_excuses"  # names of figures


def own_name(path: str) -> str:
    """Return the name under which a number in an optimizer is compared, or "" for a path outside of optimizers.

    For a number of a parameter group, this name is the group, `.` and the number's name. For a number in the state of a
    parameter, it is `.` and the number's name.
    """
    group, state = OF_GROUP.search(path), _OF_STATE.search(path)
    return group[1] if group else state[1] if state else ""


class ExcusedEnds:
    """The tensors (`category name`) whose values at the ends of two arms may differ, because the contract allows it.

    A difference is allowed only in counts: numbers that are integers in every record. A tensor with fractions must
    always be equal. counted: paths of Python numbers that captured steps only increase and never read.
    """

    def __init__(self, own: Mapping[str, str], others: Iterable[str], host_values: Collection[str]) -> None:
        """Store the names of tensors whose ends may differ.

        own: name -> reason, from the entries under `may_end_apart` of the judged claim. others: names from the entries
        of a claim that the judged claim refers to; no warning appears if these names are not needed. host_values: paths
        of numbers that replays need not update.
        """
        self._own, self._named, self._host_values = own, {*own, *others}, host_values
        self.counted: set[str] = set()
        self._needed: set[str] = set()
        self._compared = False

    def excuses(self, name: str, *ends: State | None) -> bool:
        """Return True if the contract allows the tensor `name` to have different values at the ends of two arms.

        The contract must name the tensor, and its value must be an integer in every state of `ends` that contains the
        tensor.
        """
        category, _, tensor = name.partition(" ")
        holders = [each for each in ends if each is not None and tensor in each.digests.get(category, {})]
        values = [(each.numbers or {}).get(name) for each in holders]
        named = name in self._named or bool({*self.paths_of([name])} & {*self._host_values})
        excused = named and all(value is not None and value.is_integer() for value in values)
        self._needed |= {name} if excused else set()
        return excused

    def paths_of(self, apart: Iterable[str]) -> list[str]:
        """Return the paths of the Python numbers in `counted` (which steps only increase) that belong to a tensor in
        `apart`. apart: names of the tensors whose values at the ends differ."""
        names = {each.split(" (")[0].removeprefix("optimizer ") for each in apart if each.startswith("optimizer ")}
        found = ((path, own_name(path)) for path in sorted(self.counted))
        return [
            path
            for path, own in found
            if own and (path in names or any(each == own or (own[0] == "." and each.endswith(own)) for each in names))
        ]

    def are_counted(self, apart: Collection[str]) -> bool:
        """Return True if all tensors in `apart`, whose ends differ, are numbers that steps increase but never read."""
        return all(self.paths_of([each]) for each in apart)

    def compared(self) -> None:
        """Record that end states were compared. Allowed differences that did not occur are then reported."""
        self._compared = True

    def sentence(self, sheet: Sheet) -> str:
        """Record how many allowed differences occurred, and which entries under `may_end_apart` were not needed. Return
        the end of a sentence that names three things: numbers that steps only increase, allowed differences that
        occurred and, if the ends were compared, entries that were not needed."""
        idle = sorted(self._own.keys() - self._needed) if self._compared else []
        clauses = []
        if self.counted:
            clauses.append(f"no replay changes {some(sorted(self.counted))}, which no step reads")
        if self._needed:
            sheet.figure(EXCUSED_ENDS, len(self._needed), "counts")
            clauses.append(f"{some(sorted(self._needed))} ended differently, which the contract allows")
        if idle:
            sheet.figure(IDLE_EXCUSES, ", ".join(idle))
            clauses.append(f"warning: not needed in `may_end_apart`: {some(idle)}")
        return "".join(f"; {clause}" for clause in clauses)


LOOSE = "tensors"  # the category of loose tensors, which belong to no model and no optimizer
_COUNT = "num_batches_tracked"  # suffix of the name under which BatchNorm counts its batches


def note_watched(executions: Mapping[str, ArmEvidence], sheet: Sheet) -> None:
    """Record how many tensors the end state of the first execution has, and their categories."""
    state = end_of(next(iter(executions.values()))).state
    if state is not None:
        sheet.count("state_tensors", state.tensors)
        sheet.figure("watched", ", ".join(category for category, found in state.digests.items() if found))


def require_recorded(executions: Mapping[str, ArmEvidence]) -> None:
    """Raise INCONCLUSIVE if states were not recorded, as in evidence of older versions, or if it is unknown which loose
    tensors belong to the training's state. This is the last check before PASS."""
    for name, execution in executions.items():
        if execution.start.state is None or end_of(execution).state is None:
            settle(
                reasons.END_STATE_UNRECORDED,
                f"at the start and the end of {name}, only a digest of the parameters was recorded; run it again",
            )
        loose = end_of(execution).loose
        lent = loose is not None and loose.lent and any(roles_known(each) for each in executions.values())
        if loose is not None and loose.roles is None and not lent:
            settle(
                reasons.END_STATE_UNRECORDED,
                f"it is unknown whether the tensors that the steps of {name} created are state: "
                f"{loose.failure or 'no arm recorded the operators of these steps'}",
            )


def require_finite_end(executions: Mapping[str, ArmEvidence], sheet: Sheet) -> None:
    """Raise FAIL if a tensor contains NaN or infinity at the end.

    NaN and infinity are allowed in two cases. First, in a buffer or loose tensor that has not changed since the start,
    or that did not exist at the start, such as a mask; but a loose tensor that was finite when a step created it must
    stay finite. Second, in a loose tensor that contained NaN or infinity at the start, such as a log.
    """
    for name, execution in executions.items():
        end = end_of(execution).state
        if end is None:
            continue
        for role, state in ((f"{name} at its start", execution.start.state), (f"{name} at its end", end)):
            if state is not None:
                _require_whole(role, execution, state)
        _require_roles(name, end_of(execution))
        bad = _not_finite(execution.start.state, end, end_of(execution).spoiled or ())
        if bad:
            sheet.figure("first_non_finite_tensor", bad[0])
            settle(reasons.NON_FINITE_END, f"{len(bad)} tensors of {name} ended NaN or infinite: {some(bad)}")


def _not_finite(start: State | None, end: State, spoiled: Collection[str]) -> list[str]:
    """Return the names of tensors that contain NaN or infinity at the end, although they must not. spoiled: tensors
    outside of modules and optimizers that steps created, and that were finite earlier."""
    found = []
    for category, tensors in end.digests.items():
        before = {} if start is None else start.digests.get(category, {})
        for name, digest in tensors.items():
            # A constant tensor may contain infinities. A tensor that steps created counts as constant, because it may
            # be a mask, whose infinities are at positions that depend on the batch.
            constant = category in ("buffers", LOOSE) and before.get(name, digest) == digest
            constant = constant and not (category == LOOSE and name in spoiled)
            unfilled = category == LOOSE and before.get(name, "").endswith(NOT_FINITE)
            if digest.endswith(NOT_FINITE) and not (constant or unfilled):
                found.append(f"{category} {name}")
    return found


def _require_roles(name: str, end: ArmEnd) -> None:
    """Raise ERROR if the record of an execution's end lacks a loose tensor's role (kind of state) or digest."""
    if end.loose is not None and end.loose.lent and end.loose.roles is None:
        return
    named, unread = roles_of(end), set() if end.loose is None else end.loose.unread.keys()
    compared = {} if end.state is None else end.state.digests.get(LOOSE, {})
    apart = {each for each, role in named.items() if role not in COMPARED} ^ unread
    apart |= {each for each, role in named.items() if role in COMPARED} - compared.keys()
    if apart:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"at the end of {name}, the kind of state or the digest of {counted(len(apart), 'tensor')} is missing: "
            f"{some(sorted(apart))}",
        )


def _require_whole(role: str, execution: ArmEvidence, state: State) -> None:
    """Raise ERROR if the record of a state lacks tensors, because an unrecorded tensor may have wrong values."""
    recorded = sum(len(tensors) for tensors in state.digests.values())
    if recorded != state.tensors or not state.digests.get("generators"):
        missing = "" if recorded != state.tensors else ", but no state of a random number generator"
        settle(reasons.EVIDENCE_INCONSISTENT, f"{recorded} of {state.tensors} tensors of {role} are recorded{missing}")
    parameters = len(state.digests.get("parameters", {}))
    if parameters < execution.start.trainable_tensors:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"{parameters} of {execution.start.trainable_tensors} parameters of {role} are recorded",
        )


def require_equal_ends(
    executions: Mapping[str, ArmEvidence],
    sheet: Sheet,
    *,
    same_system: bool,
    noisy: Collection[str] | None = None,
    excused: ExcusedEnds,
) -> None:
    """Raise FAIL unless all executions end with the same bits as the first one.

    If `same_system` is False, only the parameters are compared, because all other state has different names in
    different systems.
    noisy: names (`category name`) of tensors whose values noise may change. Both executions must have these tensors.
    All other tensors must be equal. excused: the counts that may end with different values.
    """
    reference_name, reference = next(iter(executions.items()))
    excused.compared()
    for name, execution in list(executions.items())[1:]:
        ours, theirs = end_of(execution), end_of(reference)
        apart = []
        if same_system and ours.state is not None and theirs.state is not None:
            found = ends_differing(execution, reference)
            renamed = _renamed(found, execution, reference)
            apart = [
                str(entry)
                for entry in found
                if not (_is_of_a_capture(entry, execution, reference) or entry in renamed)
                and (entry.only_one_has_it or f"{entry.category} {entry.name}" not in (noisy or ()))
                and not excused.excuses(f"{entry.category} {entry.name}", ours.state, theirs.state)
            ]
        if ours.trainable_digest != theirs.trainable_digest and not apart and noisy is None:
            apart = ["parameters"]
        if apart:
            sheet.figure("state_differing", len(apart), "tensors")
            sheet.figure("first_differing_tensor", apart[0])
            if excused.are_counted(apart):
                settle(
                    reasons.HOST_VALUE_UNEXPLAINED,
                    f"{name} and {reference_name} end with different values of {some(apart)}, which no replay changes "
                    "and no step reads: explain under `host_values` of the contract, by the name "
                    f"{some(excused.paths_of(apart))}, why the values may differ, or keep the count in a tensor",
                )
            losses = "have equal losses" if noisy is None else "have losses whose difference noise explains"
            settle(
                reasons.END_DIFFERS if noisy is None else reasons.BEYOND_NOISE,
                f"{name} and {reference_name} {losses}, but end with different values in {len(apart)} tensors: "
                f"{some(apart)}",
            )


def _is_of_a_capture(entry: Apart, execution: ArmEvidence, reference: ArmEvidence) -> bool:
    """Return True if the tensor is a buffer of a capture. Such a tensor is a loose tensor that did not exist at the
    start, and each execution that has it runs a step whose own code makes the capture. If an execution of another step
    also has the tensor, the tensor is state of the training, and the result is False."""
    both = [execution, reference]
    holders = both if not entry.only_one_has_it else both[:1] if entry.ours else both[1:]
    return entry.category == LOOSE and all(
        each.start.facts.get(CAPTURES_ITSELF) is True and not _had_from_the_start(entry, each) for each in holders
    )


def _renamed(found: Sequence[Apart], execution: ArmEvidence, reference: ArmEvidence) -> set[Apart]:
    """Return the tensors that have equal bits but different names in both executions.

    Only tensors outside of modules and optimizers that steps created are compared. If no execution runs a step whose
    own code makes the capture, return none: only such a capture gives other names to the tensors that it keeps.
    """
    if not any(each.start.facts.get(CAPTURES_ITSELF) is True for each in (execution, reference)):
        return set()
    by_digest: list[dict[str, list[Apart]]] = [{}, {}]
    for entry in found:
        holder = execution if entry.ours else reference
        if entry.category == LOOSE and entry.only_one_has_it and not _had_from_the_start(entry, holder):
            state = end_of(holder).state
            digest = "" if state is None else state.digests[LOOSE][entry.name]
            by_digest[entry.ours].setdefault(digest, []).append(entry)
    alike = by_digest[0].keys() & by_digest[1].keys()
    return {entry for each in by_digest for digest in alike for entry in each[digest]}


def _had_from_the_start(entry: Apart, execution: ArmEvidence) -> bool:
    start = execution.start.state
    return start is not None and entry.name in start.digests.get(entry.category, {})


def require_equal_counts(ours: str, candidate: ArmEvidence, theirs: str, baseline: ArmEvidence, bound: float) -> None:
    """Raise FAIL if BatchNorm layers counted different numbers of batches, and a buffer at the end differs by more than
    the bound.

    bound: largest allowed difference, divided by the largest element of the baseline's buffer. If the difference was
    not recorded, the counts alone decide.

    Different buffers alone do not show a fault: with Adam, rounding can change a bias that precedes a norm, and with it
    the norm's running mean, although the predictions stay equal. Different counts alone do not show a fault either,
    because a recomputed forward pass may update buffers twice with the same effect.
    """
    apart = counts_apart(candidate, baseline)
    if not apart:
        return
    found = _difference_from(candidate, baseline)
    largest = None if found is None else found.buffers_relative
    if found is None or largest is None:
        statistics = "so running statistics differ"
    elif largest <= bound:
        return
    else:
        statistics = f"and at the end, buffer {found.buffer} differs by {number(largest)} times its largest element"
    settle(
        reasons.END_DIFFERS,
        f"{ours} and {theirs} have losses within the bound, but their BatchNorm layers counted different numbers of "
        f"batches, {statistics}: one arm ran a forward pass more often, for example to recompute it for the backward "
        f"pass, or it never updated a copy of the model; {some(apart)}",
    )


def counts_apart(candidate: ArmEvidence, baseline: ArmEvidence) -> list[str]:
    """Return the names of BatchNorm's counts that both arms have and that differ at the end, if ends were recorded."""
    one, other = end_of(candidate).state, end_of(baseline).state
    if one is None or other is None:
        return []
    return [
        str(entry)
        for entry in differing(one, other)
        if entry.category == "buffers" and entry.name.endswith(_COUNT) and not entry.only_one_has_it
    ]


class Apart:
    """A tensor whose values differ between two states, or that only one of the states contains."""

    def __init__(self, category: str, name: str, *, only_one_has_it: bool, ours: bool) -> None:
        """Store the tensor's name. ours: True if the first of the two states contains the tensor."""
        self.category, self.name, self.only_one_has_it, self.ours = category, name, only_one_has_it, ours

    def __str__(self) -> str:
        return f"{self.category} {self.name}" + (" (only in one execution)" if self.only_one_has_it else "")


def differing(ours: State, theirs: State) -> list[Apart]:
    found = []
    for category in sorted({*ours.digests, *theirs.digests}):
        mine, other = ours.digests.get(category, {}), theirs.digests.get(category, {})
        if mine == other:  # if the dictionaries are equal, do not sort thousands of names
            continue
        found += [
            Apart(category, name, only_one_has_it=name not in mine or name not in other, ours=name in mine)
            for name in sorted({*mine, *other})
            if mine.get(name) != other.get(name)
        ]
    return found


def ends_differing(execution: ArmEvidence, reference: ArmEvidence) -> list[Apart]:
    """Return the tensors that differ between two end states. A loose tensor that no step of one arm reads is also
    compared if the other arm's compared state contains it.

    A table of constants that only one execution created is left out, because the other execution does not need it.
    """
    ours, theirs = end_of(execution), end_of(reference)
    if ours.state is None or theirs.state is None:
        return []
    tables = {name for each in (ours, theirs) for name, role in roles_of(each).items() if role == "table"}
    found = differing(_with_unread(ours.state, ours, theirs), _with_unread(theirs.state, theirs, ours))
    return [each for each in found if not (each.category == LOOSE and each.only_one_has_it and each.name in tables)]


def roles_of(end: ArmEnd) -> Mapping[str, Role]:
    """Return the role (kind of state) of each tensor outside of modules and optimizers that steps created, by name.
    Return {} if roles were not recorded."""
    return (end.loose.roles if end.loose is not None else None) or {}


def roles_known(execution: ArmEvidence) -> bool:
    """Return True if the roles of loose tensors (created by steps, outside modules and optimizers) were recorded."""
    loose = end_of(execution).loose
    return loose is not None and loose.roles is not None


def _with_unread(state: State, end: ArmEnd, other: ArmEnd) -> State:
    """Return the state with additional tensors: tensors of `end` that no step reads, but whose values are compared in
    the end state `other`."""
    if end.loose is None or other.state is None:
        return state
    compared = other.state.digests.get(LOOSE, {})
    more = {name: digest for name, digest in end.loose.unread.items() if name in compared}
    return state.model_copy(update={"digests": {**state.digests, LOOSE: {**state.digests.get(LOOSE, {}), **more}}})


def note_distance(candidate: ArmEvidence, baseline: ArmEvidence, sheet: Sheet) -> None:
    """Record the largest differences between the ends of candidate and baseline: in a parameter, and in a buffer."""
    found = _difference_from(candidate, baseline)
    largest = None if found is None else found.largest
    if found is None and end_of(candidate).trainable_digest == end_of(baseline).trainable_digest:
        largest = 0.0  # arms of two processes are compared by digests, and these are equal
    sheet.figure("end_max_abs_difference", largest, "parameter")
    if found is not None and found.tensor is not None:
        sheet.figure("end_max_abs_difference_tensor", found.tensor)
    if found is not None and found.buffers:
        sheet.figure("end_buffers_max_relative_difference", found.buffers_relative, "of a buffer's largest element")
        sheet.figure("end_buffers_max_relative_difference_tensor", found.buffer)


def require_distance(name: str, candidate: ArmEvidence, baseline: ArmEvidence) -> None:
    """Raise INCONCLUSIVE if the distance between the two arms' ends was not recorded. A claim with a bound needs it."""
    found = _difference_from(candidate, baseline)
    if found is None or found.largest is None or not math.isfinite(found.largest):
        settle(
            reasons.END_STATE_UNRECORDED,
            f"the distance between the ends of {name} and {baseline.start.arm} was not recorded",
        )


def distance(candidate: ArmEvidence, baseline: ArmEvidence) -> str:
    """Return the end of a sentence about the largest difference between parameters at the end; "" if not recorded."""
    found = _difference_from(candidate, baseline)
    if found is None or found.largest is None:
        return ""
    return f"; their parameters differ by up to {number(found.largest)} at the end"


def _difference_from(candidate: ArmEvidence, baseline: ArmEvidence) -> EndDifference | None:
    """Return the recorded difference between the candidate's end and this baseline execution's end, or None."""
    end = end_of(baseline)
    numbers = (end.replica, 0)  # in evidence of older versions, the number of an execution is always 0
    known = (each for each in end_of(candidate).differences or [] if each.arm == end.arm and each.replica in numbers)
    return next(known, None)
