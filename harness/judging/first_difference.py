"""Find the first difference between one step of two arms, from the recorded operators of both arms alone.

The operators of both arms are paired in three rounds. The first round pairs operators with equal name, input types,
input shapes, module, line of code, and digests of inputs that existed before the step. These pairs keep the order of
execution; only an operator with an input that existed before the step may be paired out of order. Between the pairs of
the first round, the second round pairs operators without regard to the digests. The third round also ignores the line
of code, and pairs only operators that both arms have equally often. An operator without a partner is reported only if
it computed a value that differs.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Literal

from pydantic import Field

from harness.evidence.base import Record
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import GRADIENT, OBSERVED, UNOBSERVED, ObservedOperator, ObservedStep, ReadTensor

Answer = Literal["equal", "differs", "not_seen"]
Pair = tuple[int, int]  # index of an operator of the candidate, and index of an operator of the baseline
_Numbered = Sequence[tuple[int, ObservedOperator]]
PATH = (
    *("batch", "settings", "generators", "state"),
    *("forward", "loss", "backward", "gradients", "clip", "update"),
)
_SETTINGS = re.compile(r"optimizer (.*\.)?(group\d+|scheduler)\.")
_NAMED = 4  # largest number of tensors or lines that are listed by name


class PathRow(Record):
    """One part of a step, such as the backward pass. operators: number of compared pairs of operators. alone: number of
    operators that have no partner in the other arm. names: the tensors or settings that differ, or the module or line
    of the first operator that differs."""

    part: str
    answer: Answer
    names: list[str]
    operators: int | None = None
    alone: int | None = None


class Place(Record):
    """The operator of one arm that computes the value that differs, and its place in the code. made_at: lines of code
    whose operators computed the differing input and have no partner in the other arm."""

    operator: str
    module: str
    line: str
    code: str
    made_at: list[str]


class FirstDifference(Record):
    """The first difference between two arms. how: how an operator of the candidate differs from its partner in the
    baseline: it gets other numbers (`numbers`), reads another tensor (`reads`), returns another result for equal inputs
    (`result`), or writes other state (`writes`). None: unknown."""

    found: Literal["found", "does_not_repeat", "not_seen"]
    candidate: str
    baseline: str
    steps: int  # number of compared steps
    step: int | None = None
    why: str = ""  # the reason why no difference was seen
    deterministic: bool = False  # True: both arms used torch's deterministic algorithms
    # The arm in which the worker died ("" if no arm had begun), and the cause of death. None: no worker died.
    ended: tuple[str, str] | None = None
    path: list[PathRow] = Field(default_factory=list)
    part: str | None = None
    how: Literal["numbers", "reads", "result", "writes"] | None = None
    tensor: str | None = None  # name of the tensor that is read or written
    between: list[str] = Field(default_factory=list)  # lines of code that changed state differently between two steps
    numbers: list[str] = Field(default_factory=list)  # the operator's numbers that differ: candidate's, baseline's
    typed: Place | None = None  # the first operator that made the differing value and works in another data type
    types: list[str] = Field(default_factory=list)  # the operator's data types that differ: candidate's, baseline's
    places: dict[str, Place] = Field(default_factory=dict)  # name of an arm -> its place
    elements: int | None = None  # number of elements in which the operator's result differs
    of: int | None = None  # number of all elements of the result
    largest: float | None = None
    unseen: int = 0  # number of kernels and graph replays without recorded operators; the larger number of both arms
    # seconds from the opening of the arm to the end of the step whose operators were recorded, added over both arms
    seconds: float | None = None
    bytes: int | None = None  # number of bytes of the recorded digests, in the arm with the larger number


def first_differing(candidate: Iterable[ObservedStep], baseline: Iterable[ObservedStep]) -> int | None:
    """Return the first step in which the arms recorded different values. If the arms differ only in optimizer settings
    and states of generators, return the last step in which these differ. Return None if all steps are equal."""
    others, late = {each.step: each for each in baseline}, list[int]()
    for step in sorted(candidate, key=lambda each: each.step):
        other = others.get(step.step)
        names = [] if other is None else [name for each in _differences(step, other).values() for name in each]
        if not all(map(_of_host, names)):
            return step.step
        late += [step.step] if names else []
    # Different settings or generators alone have an effect only in the operators of a later step.
    return late[-1] if late else None


def _of_host(name: str) -> bool:
    return name.startswith("generators ") or _SETTINGS.match(name) is not None


def _differences(candidate: ObservedStep, baseline: ObservedStep) -> dict[str, list[str]]:
    before = unequal(candidate.before, baseline.before)
    return {
        "batch": unequal(candidate.batch, baseline.batch),
        "settings": [name for name in before if _SETTINGS.match(name)],
        "generators": [name for name in before if name.startswith("generators ")],
        "state": [name for name in before if not _of_host(name)],
        "loss": [] if candidate.loss == baseline.loss else ["loss"],
        "gradients": _gradients_apart(candidate.gradients, baseline.gradients),
        "update": unequal(candidate.after, baseline.after),
    }


def unequal(digests: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """Return the names that both mappings contain with different digests."""
    return [name for name, digest in digests.items() if others.get(name, digest) != digest]


def _gradients_apart(digests: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """Return the names of gradients that differ or that only one arm has. Return none if one arm has no gradients."""
    missing = sorted(digests.keys() ^ others.keys()) if digests and others else []
    return [*unequal(digests, others), *missing]


def difference_of(candidate: ObservedStep, baseline: ObservedStep) -> FirstDifference:
    """Return the first difference in a step whose operators were recorded in both arms."""
    differing = _differences(candidate, baseline)
    ours, theirs = candidate.operators or [], baseline.operators or []
    pairs = aligned(ours, theirs)
    parts = [_parts(ours), _parts(theirs)]
    path = [*_path(candidate, baseline, differing, pairs, parts)]
    first = next((row.part for row in path if row.answer == "differs"), None)
    change = _first_pair(ours, theirs, pairs) if first else None
    if change is None and None not in (candidate.operators, baseline.operators):
        change = _first_write(ours, theirs, [*differing["gradients"], *differing["update"]])
    found = FirstDifference(
        found="found" if first else "does_not_repeat",
        candidate=candidate.arm,
        baseline=baseline.arm,
        steps=candidate.step + 1,
        step=candidate.step,
        path=path,
        part=first,
    )
    if first in differing:
        found = found.model_copy(update={"between": _written_between(ours, theirs, differing[first])})
    how, (mine, other), tensor, numbers, reads = change or (None, (None, None), None, [], (None, None))
    matched = [{pair[side] for pair in pairs} for side in (0, 1)]
    places = {
        arm: _place(operators, number, read, matched[side])
        for side, (arm, operators, number, read) in enumerate(
            [(candidate.arm, ours, mine, reads[0]), (baseline.arm, theirs, other, reads[1])]
        )
        if number is not None
    }
    changes: dict[str, object] = {"how": how, "tensor": tensor, "numbers": numbers, "places": places}
    if first and how in ("reads", "writes", None):
        alone = [_makers(*each) for each in zip((ours, theirs), reads, matched, strict=True)]
        made = [[each[number] for number in own] for each, own in zip((ours, theirs), alone, strict=True)]
        changes |= _of_another_type(made, reads[0])
    if how == "result" and mine is not None and other is not None:
        changes |= _apart(ours[mine], theirs[other])
    return found.model_copy(update=changes)


Told = tuple[str, tuple[int | None, int | None], str | None, list[str], tuple[ReadTensor | None, ReadTensor | None]]


def answer_of(run: Run, steps: Sequence[ObservedStep], deaths: Sequence[Death] = ()) -> FirstDifference:
    """Return the first difference in the recorded steps of a run of the probe `where`. deaths: the records about
    workers of this run that died."""
    candidate, baseline = (str(run.settings[role]) for role in ("candidate", "baseline"))
    last = int(str(run.settings["last"]))
    known = {(each.arm, each.replica, each.step): each for each in steps}
    compared = sum(each[:2] == (candidate, 0) and (baseline, *each[1:]) in known for each in known)
    nothing = FirstDifference(
        found="does_not_repeat",
        candidate=candidate,
        baseline=baseline,
        steps=compared,
        deterministic=bool(run.settings.get("deterministic")),
    )
    replicas = (UNOBSERVED, OBSERVED) if run.settings["observed"] else (UNOBSERVED,)
    if not all((arm, replica, last) in known for arm in (candidate, baseline) for replica in replicas):
        ended = next((_ended(death, run) for death in deaths), None)
        why = "limit" if ended is None else "ended"
        return nothing.model_copy(update={"found": "not_seen", "why": why, "ended": ended})
    if not run.settings["observed"]:
        return nothing
    observed = [known[arm, OBSERVED, last] for arm in (candidate, baseline)]
    if any(_bits(each) != _bits(known[each.arm, UNOBSERVED, last]) for each in observed):
        return nothing.model_copy(update={"found": "not_seen", "why": "observed", "step": last})
    seen = {
        "deterministic": nothing.deterministic,
        "unseen": max(each.unseen for each in observed),
        "seconds": sum(each.seconds or 0.0 for each in observed),
        "bytes": max(each.bytes or 0 for each in observed),
    }
    return difference_of(observed[0], observed[1]).model_copy(update=seen)


def _ended(death: Death, run: Run) -> tuple[str, str]:
    """Return the arm in which a worker died ("" if no arm had begun), and the cause of its death."""
    arm = (death.phase or "").partition(": ")[0].rpartition(".")[0]
    return arm if arm in (run.settings["candidate"], run.settings["baseline"]) else "", death.detail


def _bits(step: ObservedStep) -> ObservedStep:
    of_observer = {"operators": None, "unseen": 0, "seconds": None, "bytes": None}
    return step.model_copy(update={"replica": UNOBSERVED, **of_observer})


def kept_results(run: Run, steps: Sequence[ObservedStep]) -> dict[str, list[int]]:
    """Return, for each arm, the indices of the operators whose results another run must record. These are the two
    operators of the first pair that differs, if they return different results for equal inputs; otherwise none. For a
    replayed operator, its index in its graph is included, too."""
    observed = {each.arm: each for each in steps if each.operators is not None}
    arms = [str(run.settings[role]) for role in ("candidate", "baseline")]
    if not set(arms) <= observed.keys():
        return {}
    ours, theirs = (observed[arm].operators or [] for arm in arms)
    change = _first_pair(ours, theirs, aligned(ours, theirs))
    if change is None or change[0] != "result":
        return {}
    kept = {}
    for arm, operators, number in zip(arms, (ours, theirs), change[1], strict=True):
        if number is not None:
            captured_as = operators[number].captured_as
            kept[arm] = [number] if captured_as is None else sorted({number, captured_as})
    return kept


def _first_pair(
    ours: Sequence[ObservedOperator], theirs: Sequence[ObservedOperator], pairs: Sequence[Pair]
) -> Told | None:
    """Return the first pair of operators that differs and that user code calls. If there is none, return the first pair
    that differs, which is then a copy that the harness makes. Return None if no pair differs."""
    changes = [each for pair in pairs if (each := _differing(ours[pair[0]], theirs[pair[1]], pair)) is not None]
    return next((each for each in changes if ours[each[1][0] or 0].line), changes[0] if changes else None)


def _differing(mine: ObservedOperator, other: ObservedOperator, pair: Pair) -> Told | None:
    """Return how two paired operators differ. Return None if their results are equal, even if their inputs differ."""
    made = all(None in each or each[0] == each[1] for each in zip(mine.makes, other.makes, strict=False))
    if made and _left_alike(mine, other):
        return None
    for number, (read, its) in enumerate(zip(mine.reads, other.reads, strict=True)):
        if None not in (read.digest, its.digest) and read.digest != its.digest and not _fills(mine, other, number):
            numbers = [each for each in (read.number, its.number) if each is not None]
            return "reads", pair, read.name or its.name, numbers if len(numbers) == 2 else [], (read, its)
    if mine.arguments != other.arguments:
        apart = [each for each in zip_longest(mine.arguments, other.arguments, fillvalue="-") if each[0] != each[1]]
        numbers = [", ".join(each[side] for each in apart[:_NAMED]) for side in (0, 1)]
        return "numbers", pair, None, numbers, (None, None)
    return "result", pair, None, [], (None, None)


def _left_alike(mine: ObservedOperator, other: ObservedOperator) -> bool:
    """Return True if two paired operators leave equal contents in all their input tensors.

    In two cases the contents count as equal although only one arm changes a tensor. First, the unchanged tensor may
    already contain the result, because memory is reused. Second, both arms write the same result to another input, and
    one arm also writes it to this tensor, whose earlier content is no longer needed.
    """
    ours, theirs = mine.leaves, other.leaves
    if len(ours) != len(theirs):
        return False
    both = [left for left, its in zip(ours, theirs, strict=True) if left is not None and left == its]
    rows = zip(ours, theirs, _held_after(mine), _held_after(other), strict=True)
    apart = [{left, its} for left, its, held, it_held in rows if left != its and held != it_held]
    return all(None in each and each - {None} <= {*both} for each in apart)


def _held_after(operator: ObservedOperator) -> list[str | None]:
    """Return the digests of an operator's inputs as they are after the operator."""
    before = [each.digest for each in operator.reads]
    return [
        held if left is None else left for left, held in zip_longest(operator.leaves, before[: len(operator.leaves)])
    ]


def _fills(mine: ObservedOperator, other: ObservedOperator, number: int) -> bool:
    """Return True if the input with this number is only memory for a result: an arm's operator writes to it, and in
    both arms no earlier operator produced it."""
    both = mine.reads[number], other.reads[number]
    writes = any(number < len(each.leaves) and each.leaves[number] is not None for each in (mine, other))
    return writes and all(each.source is None and each.name is None for each in both)


def _first_write(
    ours: Sequence[ObservedOperator], theirs: Sequence[ObservedOperator], names: Sequence[str]
) -> Told | None:
    """Return the first tensor in `names` to which an operator writes, with the last operator of each arm that writes to
    this tensor."""
    for name in names:
        writers = tuple(
            max((number for number, each in enumerate(operators) if name in each.writes), default=None)
            for operators in (ours, theirs)
        )
        if writers != (None, None):
            return "writes", (writers[0], writers[1]), name, [], (None, None)
    return None


def _written_between(
    ours: Sequence[ObservedOperator], theirs: Sequence[ObservedOperator], names: Sequence[str]
) -> list[str]:
    """Return, for each arm, the last line of code that wrote to a tensor in `names` between two steps."""
    last = [
        next((each.line for each in reversed(operators) if each.phase == "between" and {*each.writes} & {*names}), "")
        for operators in (ours, theirs)
    ]
    return [line for line in dict.fromkeys(last) if line]


def aligned(ours: Sequence[ObservedOperator], theirs: Sequence[ObservedOperator]) -> list[Pair]:
    """Return pairs of indices: in each pair, the index of an operator of one arm, and of the corresponding operator of
    the other arm.

    The pairs are in order. If one arm executes an operator more often than the other, its replayed calls are paired
    first, and then its last calls. The remaining calls get no partner, because they belong to a warm-up.
    """
    mine, other = _of_the_step(ours, theirs), _of_the_step(theirs, ours)
    moved = _moved(mine, other)
    rest = [each for each in mine if each[0] not in moved], [each for each in other if each[0] not in moved.values()]
    return sorted([*moved.items(), *_paired(*rest, (_fed, _token, _form))])


def _moved(mine: _Numbered, other: _Numbered) -> dict[int, int]:
    """Return pairs of operators that read equal inputs from before the step, but run in another order (two streams)."""
    in_order, left = _paired(mine, other, (_fed,)), list[dict[Hashable, list[int]]]()
    for side, operators in enumerate((mine, other)):
        paired = {pair[side] for pair in in_order}
        left.append({})
        for number, operator in operators:
            if number not in paired and _inputs(operator):
                left[side].setdefault(_fed(operator), []).append(number)
    both = [(numbers, left[1][key]) for key, numbers in left[0].items() if len(left[1].get(key, [])) == len(numbers)]
    return {own: its for numbers, others in both for own, its in zip(numbers, others, strict=True)}


def _paired(mine: _Numbered, other: _Numbered, keys: Sequence[Callable[[ObservedOperator], Hashable]]) -> list[Pair]:
    """Return, in order, pairs of operators for which the first function in `keys` returns equal keys. Operators between
    two such pairs are paired by the next function. The last function pairs operators with a key only if both arms have
    equally many of them between the two pairs."""
    if not (mine and other and keys):
        return []
    key, *later = keys
    if not later:
        times = [Counter(key(operator) for _, operator in some) for some in (mine, other)]
        mine, other = (
            [each for each in some if times[0][key(each[1])] == times[1][key(each[1])]] for some in (mine, other)
        )
    pairs, before = list[Pair](), (0, 0)
    found = _in_order([key(operator) for _, operator in mine], [key(operator) for _, operator in other])
    for left, right in [*found, (len(mine), len(other))]:
        pairs += _paired(mine[before[0] : left], other[before[1] : right], later)
        pairs += [(own[0], its[0]) for own, its in zip(mine[left : left + 1], other[right : right + 1], strict=True)]
        before = left + 1, right + 1
    return pairs


def _in_order(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> list[Pair]:
    """Return pairs of an index in `ours` and an index in `theirs` with equal entries. From pair to pair, both indices
    rise. First the longest such sequence of pairs is found, and then further pairs in each gap between its pairs."""
    pairs: list[Pair] = []
    waiting = [((0, len(ours)), (0, len(theirs)))]
    while waiting:
        (begin, end), (its_begin, its_end) = waiting.pop()
        found = _rising(ours[begin:end], theirs[its_begin:its_end])
        before = begin, its_begin
        for mine, other in [(begin + mine, its_begin + other) for mine, other in found]:
            pairs.append((mine, other))
            waiting.append(((before[0], mine), (before[1], other)))
            before = mine + 1, other + 1
        if found:
            waiting.append(((before[0], end), (before[1], its_end)))
    return sorted(pairs)


def _rising(ours: Iterable[Hashable], theirs: Iterable[Hashable]) -> list[Pair]:
    """Return the longest sequence of pairs of an index in `ours` and an index in `theirs` with equal entries, in which
    both indices rise. The k-th occurrence of an entry is paired only with its k-th occurrence in the other list."""
    places = {token: place for place, token in enumerate(_counted(theirs))}
    found = [(mine, places[token]) for mine, token in enumerate(_counted(ours)) if token in places]
    ends: list[int] = []  # for each length: the smallest index in `theirs` at which a sequence of this length ends
    last: list[int] = []  # for each length: the index in `found` of the last pair of this sequence
    earlier: list[int | None] = []  # for each pair in `found`: the index of the pair before it in its sequence
    for number, (_, place) in enumerate(found):
        length = bisect_left(ends, place)
        earlier.append(last[length - 1] if length else None)
        ends[length : length + 1], last[length : length + 1] = [place], [number]
    pairs: list[Pair] = []
    at = last[-1] if last else None
    while at is not None:
        pairs.append(found[at])
        at = earlier[at]
    return pairs[::-1]


def _counted(tokens: Iterable[Hashable]) -> Iterator[Hashable]:
    times: Counter[Hashable] = Counter()
    for token in tokens:
        times[token] += 1
        yield token, times[token]


def _of_the_step(operators: Sequence[ObservedOperator], others: Sequence[ObservedOperator]) -> _Numbered:
    """Return the step's operators that can have a partner in the other arm, each with its index, in reverse order.

    If some calls of an operator are replayed, all replayed calls are included. Of its other calls, the last ones are
    added, until there are as many calls as in the other arm. Operators that run between two steps are left out.
    """
    tokens, times = [*map(_token, operators)], Counter(_token(each) for each in others if each.phase != "between")
    replayed = Counter(token for token, each in zip(tokens, operators, strict=True) if each.replayed)
    more = {token: times[token] - count for token, count in replayed.items()}
    found = []
    for number in reversed(range(len(operators))):
        operator, token = operators[number], tokens[number]
        if operator.phase == "between":
            continue
        if token in more and not operator.replayed:
            more[token] -= 1
            if more[token] < 0:
                continue
        found.append((number, operator))
    return found


def _form(operator: ObservedOperator) -> tuple[object, ...]:
    return operator.name, operator.phase, operator.module, *(read.form for read in operator.reads)


def _token(operator: ObservedOperator) -> tuple[object, ...]:
    return *_form(operator), operator.code


def _fed(operator: ObservedOperator) -> tuple[object, ...]:
    return *_token(operator), *_inputs(operator)


def _inputs(operator: ObservedOperator) -> list[str]:
    """Return the digests of the inputs that existed before the step and that the operator does not change."""
    leaves = [*operator.leaves, *[None] * len(operator.reads)]
    reads = [read for read, left in zip(operator.reads, leaves, strict=False) if left is None]
    return [each.digest for each in reads if each.source is None and each.digest is not None and each.number is None]


def _parts(operators: Sequence[ObservedOperator]) -> list[str]:
    """Return, for each operator, the part of the step to which it belongs, such as `clip` or `update`."""
    backward = [number for number, each in enumerate(operators) if each.phase == "backward"]
    end = backward[-1] if backward else len(operators)
    clips = [number for number, each in enumerate(operators) if number > end and _clips(each)]
    last_clip = max(clips, default=end)
    after = ["clip" if number <= last_clip else "update" for number in range(len(operators))]
    return [each.phase if number <= end else after[number] for number, each in enumerate(operators)]


def _clips(operator: ObservedOperator) -> bool:
    """Return True if an operator writes only gradients, and does more than set them to zero."""
    zeroes = operator.name.endswith("zero_")
    return bool(operator.writes) and not zeroes and all(each.startswith(f"{GRADIENT} ") for each in operator.writes)


def _path(
    candidate: ObservedStep,
    baseline: ObservedStep,
    differing: Mapping[str, list[str]],
    pairs: Sequence[Pair],
    parts: Sequence[Sequence[str]],
) -> Iterator[PathRow]:
    ours, theirs = candidate.operators or [], baseline.operators or []
    seen = {
        "batch": candidate.batch.keys() & baseline.batch.keys(),
        "gradients": candidate.gradients.keys() & baseline.gradients.keys(),
        "state": candidate.before.keys() & baseline.before.keys(),
        "update": candidate.after.keys() & baseline.after.keys(),
    }
    unseen = candidate.unseen or baseline.unseen
    for part in PATH:
        own = [pair for pair in pairs if parts[0][pair[0]] == part]
        alone = (
            sum(each == part for side in parts for each in side)
            - len(own)
            - sum(parts[1][pair[1]] == part for pair in pairs)
        )
        names = list(differing.get(part, []))
        if part in ("forward", "backward", "clip", "update"):
            # If the results of the step are equal, a pair that differs only means that the operators were paired
            # wrongly.
            change = _first_pair(ours, theirs, own) if any(differing.values()) else None
            where = [] if change is None else [ours[change[1][0] or 0].module or ours[change[1][0] or 0].line]
            names = names or where
            is_seen = not unseen and (bool(own) or bool(seen.get(part)))
            answer: Answer = "differs" if names or change is not None else "equal" if is_seen else "not_seen"
            yield PathRow(part=part, answer=answer, names=names[:_NAMED], operators=len(own), alone=max(alone, 0))
        else:
            answer = "differs" if names else "equal" if seen.get(part, {part}) else "not_seen"
            yield PathRow(part=part, answer=answer, names=names[:_NAMED])


def _place(operators: Sequence[ObservedOperator], number: int, read: ReadTensor | None, matched: set[int]) -> Place:
    operator = operators[number]
    makers = _makers(operators, read, matched) if read is not None else []
    lines = [line for each in makers if (line := operators[each].line)]
    made_at, half = [*dict.fromkeys(lines)], _NAMED // 2
    return Place(
        operator=operator.name,
        module=operator.module,
        line=operator.line,
        code=operator.code,
        made_at=made_at if len(made_at) <= _NAMED else [*made_at[:half], *made_at[-half:]],
    )


def _makers(operators: Sequence[ObservedOperator], read: ReadTensor | None, matched: set[int]) -> list[int]:
    """Return, in order, the operators without a partner that computed the tensor `read`, directly or through other
    operators. If the tensor is not known, return all operators without a partner."""
    if read is None:
        return [number for number in range(len(operators)) if number not in matched]
    found: set[int] = set()
    waiting = [read.source]
    while waiting:
        number = waiting.pop()
        if number is not None and number not in found and number not in matched:
            found.add(number)
            waiting += [each.source for each in operators[number].reads]
    return sorted(found)


def _of_another_type(made: Sequence[Sequence[ObservedOperator]], read: ReadTensor | None) -> dict[str, object]:
    """Return the place of the first operator that works in another data type than the other arm, and both types. Types
    of integers are left out, because integers are not rounded.

    made: for each arm, the operators that computed the differing values of the input `read`; None: the input is not
    known. An operator's types are compared with those of the same operator of the other arm. If there is none (a
    cast), its type must differ from each type in which the other arm computed the input.
    """
    for side in (0, 1):
        same = {_role(each): _types(each) for each in reversed(made[1 - side])}
        known = {kind for each in made[1 - side] for kind in _types(each)}
        for number, operator in enumerate(made[side]):
            types, its = _types(operator), same.get(_role(operator))
            if its is None:
                types = [kind for kind in types if kind not in known]
                its = [read.form.partition(" ")[0]] * len(types) if read else []
            apart = [both for both in zip(types, its, strict=False) if both[0] != both[1] and "float" in both[0]]
            if apart and operator.line and (operator.makes or any(operator.leaves)):
                both = list(apart[0] if side == 0 else apart[0][::-1])
                return {"typed": _place(made[side], number, None, set()), "types": both}
    return {}


def _types(operator: ObservedOperator) -> list[str]:
    return [read.form.partition(" ")[0] for read in operator.reads]


def _role(operator: ObservedOperator) -> tuple[object, ...]:
    shapes = [read.form.partition(" ")[2] for read in operator.reads]
    return operator.name, operator.phase, operator.module, *shapes


def _apart(mine: ObservedOperator, other: ObservedOperator) -> dict[str, object]:
    """Return three facts about the first tensor that two paired operators return with different values: the number of
    differing elements, the number of all elements, and the largest difference."""
    for values, others in zip(mine.values or [], other.values or [], strict=False):
        apart = [abs(a - b) for a, b in zip(values, others, strict=False) if a != b]
        if apart and len(values) == len(others):
            finite = [each for each in apart if math.isfinite(each)]
            return {"elements": len(apart), "of": len(values), "largest": max(finite, default=None)}
    return {}
