"""Check the state that training ends with: finite in every claim, equal wherever bits are demanded."""

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

# Excuse counts that may end apart: named by a claim's `may_end_apart`, or numbers that no replay
# changes.

_OF_STATE = re.compile(r"(?:^|[. ])state\.\d+(\..+)")  # in the path to what an optimizer keeps for a parameter
EXCUSED_ENDS, IDLE_EXCUSES = "excused_ends", "idle_excuses"  # names of figures


def own_name(path: str) -> str:
    """Return how a number of an optimizer ends the names by which ends are compared: its group and name, or `.` and the
    name that it has in the state of each parameter. Return "" for any other path.
    """
    group, state = OF_GROUP.search(path), _OF_STATE.search(path)
    return group[1] if group else state[1] if state else ""


class ExcusedEnds:
    """The excuses of a claim by `category name`. `sentence` says which were needed, and what is only counted.

    An excuse is for a count: a whole number wherever it was recorded, so that no tensor is excused that training reads.
    counted: paths of Python numbers that captured steps count, and read nowhere.
    """

    def __init__(self, own: Mapping[str, str], others: Iterable[str], host_values: Collection[str]) -> None:
        """Take the excuses: `own` of the judged claim, `others` of a claim that it names, which may be unused here.

        host_values: paths of numbers that no replay has to change, by the contract.
        """
        self._own, self._named, self._host_values = own, {*own, *others}, host_values
        self.counted: set[str] = set()
        self._needed: set[str] = set()
        self._compared = False

    def excuses(self, name: str, *ends: State | None) -> bool:
        """Return True if what ended apart is an excused count in every state that has it."""
        category, _, tensor = name.partition(" ")
        holders = [each for each in ends if each is not None and tensor in each.digests.get(category, {})]
        values = [(each.numbers or {}).get(name) for each in holders]
        named = name in self._named or bool({*self.paths_of([name])} & {*self._host_values})
        excused = named and all(value is not None and value.is_integer() for value in values)
        self._needed |= {name} if excused else set()
        return excused

    def paths_of(self, apart: Iterable[str]) -> list[str]:
        """Return the paths of the counted numbers among what ended apart."""
        names = {each.split(" (")[0].removeprefix("optimizer ") for each in apart if each.startswith("optimizer ")}
        found = ((path, own_name(path)) for path in sorted(self.counted))
        return [
            path
            for path, own in found
            if own and (path in names or any(each == own or (own[0] == "." and each.endswith(own)) for each in names))
        ]

    def are_counted(self, apart: Collection[str]) -> bool:
        """Return True if everything that ended apart is a counted number."""
        return all(self.paths_of([each]) for each in apart)

    def compared(self) -> None:
        """Note that ends were compared, whether or not they differed."""
        self._compared = True

    def sentence(self, sheet: Sheet) -> str:
        """Note the figures and return a sentence's tail: numbers that are only counted, excuses, unneeded excuses.

        A claim that compared no ends says nothing about its excuses.
        """
        idle = sorted(self._own.keys() - self._needed) if self._compared else []
        clauses = []
        if self.counted:
            clauses.append(f"no replay counts {some(sorted(self.counted))}, which no step reads")
        if self._needed:
            sheet.figure(EXCUSED_ENDS, len(self._needed), "counts")
            clauses.append(f"excused by the contract, {some(sorted(self._needed))} ended apart")
        if idle:
            sheet.figure(IDLE_EXCUSES, ", ".join(idle))
            clauses.append(f"warning: nothing needed the excuse of {some(idle)}")
        return "".join(f"; {clause}" for clause in clauses)


LOOSE = "tensors"  # the category of what hangs loose
_COUNT = "num_batches_tracked"  # ends the name of BatchNorm's counter


def note_watched(executions: Mapping[str, ArmEvidence], sheet: Sheet) -> None:
    """Note how many tensors were watched in the first execution named, and of which kinds."""
    state = end_of(next(iter(executions.values()))).state
    if state is not None:
        sheet.count("state_tensors", state.tensors)
        sheet.figure("watched", ", ".join(category for category, found in state.digests.items() if found))


def require_recorded(executions: Mapping[str, ArmEvidence]) -> None:
    """Settle INCONCLUSIVE where states were not recorded, as in older evidence. This is the last check before PASS."""
    for name, execution in executions.items():
        if execution.start.state is None or end_of(execution).state is None:
            settle(
                reasons.END_STATE_UNRECORDED,
                f"only a digest of the parameters was recorded of the start and the end of {name}; run it again",
            )
        loose = end_of(execution).loose
        lent = loose is not None and loose.lent and any(roles_known(each) for each in executions.values())
        if loose is not None and loose.roles is None and not lent:
            settle(
                reasons.END_STATE_UNRECORDED,
                f"what the steps of {name} made was not followed to the end: {loose.failure or 'no arm did'}",
            )


def require_finite_end(executions: Mapping[str, ArmEvidence], sheet: Sheet) -> None:
    """Settle FAIL where a tensor ended NaN or infinite. A buffer may if it was so from the start, as a mask is. So may
    a loose tensor that began so, such as a log that is filled from the front.
    """
    for name, execution in executions.items():
        end = end_of(execution).state
        if end is None:
            continue
        for role, state in ((f"{name}'s start", execution.start.state), (f"{name}'s end", end)):
            if state is not None:
                _require_whole(role, execution, state)
        _require_roles(name, end_of(execution))
        bad = _not_finite(execution.start.state, end, end_of(execution).spoiled or ())
        if bad:
            sheet.figure("first_non_finite_tensor", bad[0])
            settle(reasons.NON_FINITE_END, f"{len(bad)} tensors of {name} ended NaN or infinite: {some(bad)}")


def _not_finite(start: State | None, end: State, spoiled: Collection[str]) -> list[str]:
    """Return tensors that ended NaN or infinite and must not. spoiled: those that came later and lost their numbers."""
    found = []
    for category, tensors in end.digests.items():
        before = {} if start is None else start.digests.get(category, {})
        for name, digest in tensors.items():
            # what came later may be a mask too, whose infinities lie elsewhere from batch to batch
            constant = category in ("buffers", LOOSE) and before.get(name, digest) == digest
            constant = constant and not (category == LOOSE and name in spoiled)
            unfilled = category == LOOSE and before.get(name, "").endswith(NOT_FINITE)
            if digest.endswith(NOT_FINITE) and not (constant or unfilled):
                found.append(f"{category} {name}")
    return found


def _require_roles(name: str, end: ArmEnd) -> None:
    """Settle ERROR where the role or the digest of a loose tensor is missing."""
    if end.loose is not None and end.loose.lent and end.loose.roles is None:
        return
    named, unread = roles_of(end), set() if end.loose is None else end.loose.unread.keys()
    compared = {} if end.state is None else end.state.digests.get(LOOSE, {})
    apart = {each for each, role in named.items() if role not in COMPARED} ^ unread
    apart |= {each for each, role in named.items() if role in COMPARED} - compared.keys()
    if apart:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"at {name}'s end {counted(len(apart), 'loose tensor')} lack a role or a digest: {some(sorted(apart))}",
        )


def _require_whole(role: str, execution: ArmEvidence, state: State) -> None:
    """Settle ERROR where entries are missing: one of them may be the wrong one. Every process has generators."""
    recorded = sum(len(tensors) for tensors in state.digests.values())
    if recorded != state.tensors or not state.digests.get("generators"):
        settle(reasons.EVIDENCE_INCONSISTENT, f"{recorded} of {state.tensors} tensors of {role} are recorded")
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
    same_system: bool = True,
    noisy: Collection[str] | None = None,
    excused: ExcusedEnds,
) -> None:
    """Settle FAIL unless all executions end equal in bits to the first one named. Of another system's state only the
    parameters are compared, because everything else has other names.

    noisy: tensors, by `category name`, that noise may change and both must have; noise may change no other tensor.
    excused: the counts that may end apart.
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
                    f"{name} and {reference_name} end apart in {some(apart)}, which no replay counts and no step "
                    f"reads: say why that is right, by the name {some(excused.paths_of(apart))} under `host_values` of "
                    "the contract, or keep the count in a tensor",
                )
            losses = "have equal losses" if noisy is None else "have losses that noise explains"
            settle(
                reasons.END_DIFFERS if noisy is None else reasons.BEYOND_NOISE,
                f"{name} and {reference_name} {losses} and end apart in {len(apart)} tensors: {some(apart)}",
            )


def _is_of_a_capture(entry: Apart, execution: ArmEvidence, reference: ArmEvidence) -> bool:
    """Return True for a static buffer: a loose tensor that came with a step, and only to executions that captured by
    themselves. A tensor that a plain arm has too is state, whenever it came.
    """
    both = [execution, reference]
    holders = both if not entry.only_one_has_it else both[:1] if entry.ours else both[1:]
    return entry.category == LOOSE and all(
        each.start.facts.get(CAPTURES_ITSELF) is True and not _had_from_the_start(entry, each) for each in holders
    )


def _renamed(found: Sequence[Apart], execution: ArmEvidence, reference: ArmEvidence) -> set[Apart]:
    """Return loose tensors that came late to one execution and have the bits of a late tensor of the other one, where
    one of the two captured by itself: what a step holds is found under another name once a capture holds it, too.
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
    """Settle FAIL where BatchNorm counted different numbers of batches, and a buffer ends further apart than `bound`
    times the baseline's largest element of it. Where that distance was not recorded, counts alone decide.

    Counts tell a fault from rounding: under Adam a bias before a norm drifts, and the running mean with it, and no
    prediction changes. Buffers tell a fault from a recomputation whose two updates amount to one.
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
        statistics = f"and buffer {found.buffer} ends {number(largest)} times its largest element apart"
    settle(
        reasons.END_DIFFERS,
        f"{ours} and {theirs} have losses within the bound, and their BatchNorm layers counted different numbers of "
        f"batches, {statistics}: one arm ran a forward pass more often, as recomputing for the backward pass does, or "
        f"it never updated a copy of the model; {some(apart)}",
    )


def counts_apart(candidate: ArmEvidence, baseline: ArmEvidence) -> list[str]:
    """Return BatchNorm's counts that both arms have and that end unequal; none where ends were not recorded."""
    one, other = end_of(candidate).state, end_of(baseline).state
    if one is None or other is None:
        return []
    return [
        str(entry)
        for entry in differing(one, other)
        if entry.category == "buffers" and entry.name.endswith(_COUNT) and not entry.only_one_has_it
    ]


class Apart:
    """One tensor that differs, or that only one side has."""

    def __init__(self, category: str, name: str, *, only_one_has_it: bool, ours: bool) -> None:
        """Name a tensor that differs. `ours` is True if the first side has it."""
        self.category, self.name, self.only_one_has_it, self.ours = category, name, only_one_has_it, ours

    def __str__(self) -> str:
        return f"{self.category} {self.name}" + (" (in one alone)" if self.only_one_has_it else "")


def differing(ours: State, theirs: State) -> list[Apart]:
    found = []
    for category in sorted({*ours.digests, *theirs.digests}):
        mine, other = ours.digests.get(category, {}), theirs.digests.get(category, {})
        if mine == other:  # a model has thousands of names, which need no order then
            continue
        found += [
            Apart(category, name, only_one_has_it=name not in mine or name not in other, ours=name in mine)
            for name in sorted({*mine, *other})
            if mine.get(name) != other.get(name)
        ]
    return found


def ends_differing(execution: ArmEvidence, reference: ArmEvidence) -> list[Apart]:
    """Return the tensors in which two executions end apart. A loose tensor that either one compares counts in both.

    A table that only one execution made is left out: the other one does without it, and no loss or state differs.
    """
    ours, theirs = end_of(execution), end_of(reference)
    if ours.state is None or theirs.state is None:
        return []
    tables = {name for each in (ours, theirs) for name, role in roles_of(each).items() if role == "table"}
    found = differing(_with_unread(ours.state, ours, theirs), _with_unread(theirs.state, theirs, ours))
    return [each for each in found if not (each.category == LOOSE and each.only_one_has_it and each.name in tables)]


def roles_of(end: ArmEnd) -> Mapping[str, Role]:
    """Return the roles of the loose tensors that steps made; none where roles were not recorded."""
    return (end.loose.roles if end.loose is not None else None) or {}


def roles_known(execution: ArmEvidence) -> bool:
    """Return True if the harness followed the steps of an execution."""
    loose = end_of(execution).loose
    return loose is not None and loose.roles is not None


def _with_unread(state: State, end: ArmEnd, other: ArmEnd) -> State:
    """Return the state with the loose tensors that nobody reads in this execution and that the other end compares."""
    if end.loose is None or other.state is None:
        return state
    compared = other.state.digests.get(LOOSE, {})
    more = {name: digest for name, digest in end.loose.unread.items() if name in compared}
    return state.model_copy(update={"digests": {**state.digests, LOOSE: {**state.digests.get(LOOSE, {}), **more}}})


def note_distance(candidate: ArmEvidence, baseline: ArmEvidence, sheet: Sheet) -> None:
    """Note how far the candidate's parameters and buffers ended from the baseline's, as far as the run recorded it."""
    found = _difference_from(candidate, baseline)
    largest = None if found is None else found.largest
    if found is None and end_of(candidate).trainable_digest == end_of(baseline).trainable_digest:
        largest = 0.0  # executed in two processes, with equal bits
    sheet.figure("end_max_abs_difference", largest, "parameter")
    if found is not None and found.tensor is not None:
        sheet.figure("end_max_abs_difference_tensor", found.tensor)
    if found is not None and found.buffers:
        sheet.figure("end_buffers_max_relative_difference", found.buffers_relative, "of a buffer's largest element")
        sheet.figure("end_buffers_max_relative_difference_tensor", found.buffer)


def require_distance(name: str, candidate: ArmEvidence, baseline: ArmEvidence) -> None:
    """Settle unless the distance between the ends is known, for a claim within a bound. NaN: `require_finite_end`."""
    found = _difference_from(candidate, baseline)
    if found is None or found.largest is None or not math.isfinite(found.largest):
        settle(reasons.END_STATE_UNRECORDED, f"how far {name} ended from {baseline.start.arm} was not recorded")


def distance(candidate: ArmEvidence, baseline: ArmEvidence) -> str:
    """Return the largest difference of parameters at the end, as a sentence's tail, for a claim within a bound."""
    found = _difference_from(candidate, baseline)
    if found is None or found.largest is None:
        return ""
    return f"; their parameters end up to {number(found.largest)} apart"


def _difference_from(candidate: ArmEvidence, baseline: ArmEvidence) -> EndDifference | None:
    """Return the candidate's difference from this baseline execution; None where another process executed that."""
    end = end_of(baseline)
    numbers = (end.replica, 0)  # in older evidence each execution that was compared with is the first one
    known = (each for each in end_of(candidate).differences or [] if each.arm == end.arm and each.replica in numbers)
    return next(known, None)
