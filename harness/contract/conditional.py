"""Find and check the bounds with cases in a contract file, and make copies of the contract with plain numbers instead.

For each number that can turn PASS into FAIL, a contract may give a different value for each case:

    at_least:
      otherwise: 1.1
      cases:
        - {gpu: H100, value: 1.3}

A contract with such bounds is copied for every set of numbers that can apply to one of its units. Each copy contains
these plain numbers instead of the cases, and is validated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from harness.contract.base import Capability, Demand, Judged, Name, Strict, Text, flat, marks, model_within, refuse
from harness.contract.conditions import Bound, Conditions, Dtype, Situation
from harness.contract.schema import Contract, part_kinds, part_model, parts_of
from harness.contract.strict_yaml import Document, Key, nearest
from harness.contract.validation_errors import explain, number_remedy, shown
from harness.errors import ContractError
from harness.kinds import kinds

MOST_CASES = 16  # largest number of cases for one bound
# Largest number of situations that the cases of one claim may distinguish. A situation is a workload, a GPU, a
# capability and a data type.
MOST_SITUATIONS = 20_000
MOST_SETS = 100  # largest number of different sets of bounds by which one claim may be judged

Path = tuple[Key, ...]


class Case(Strict):
    """A number with conditions. The first case whose conditions are all met gives the bound."""

    workload: Name | None = None
    """A workload of the claim."""
    gpu: Text | None = None
    """One word of the GPU's name, in upper or lower case, such as `H100`."""
    capability: Capability | None = None
    """Exactly this compute capability, such as `"9.0"`."""
    capability_at_least: Capability | None = None
    """This compute capability or a higher one."""
    dtype: Dtype | None = None
    """The data type in which the candidate computes, as its system reports it."""
    value: Any
    """The bound."""

    @model_validator(mode="after")
    def _asks_something(self) -> Case:
        if self.conditions() == Conditions():
            refuse("a case must have a condition: `workload`, `gpu`, `capability`, `capability_at_least` or `dtype`")
        if self.capability is not None and self.capability_at_least is not None:
            refuse("give either `capability` or `capability_at_least`", "capability")
        return self

    def conditions(self) -> Conditions:
        """Return the case's conditions without its value."""
        return Conditions(self.workload, self.gpu, self.capability, self.capability_at_least, self.dtype)


class ByCase(Strict):
    """A bound that depends on the unit: on its workload, GPU, compute capability or data type."""

    otherwise: Any
    """The bound if the conditions of no case are met."""
    cases: Annotated[list[Case], Field(min_length=1, max_length=MOST_CASES)]
    """Cases in order. The first case whose conditions are all met gives the bound."""


@dataclass(frozen=True)
class Found:
    """A bound with cases in a contract file. claim: index of the claim in the file. part: index of the part in the
    claim. field: path of the bound within the part."""

    claim: int
    part: int
    judgement: Path  # path of the judgement in the document
    field: str
    cases: list[Conditions]

    @property
    def place(self) -> Path:
        return (*self.judgement, *self.field.split("."))

    def value_at(self, choice: int | None) -> Path:
        """Return the path, in the contract file, of the value of case number `choice`. None means `otherwise`."""
        return (*self.place, "otherwise") if choice is None else (*self.place, "cases", choice, "value")


# For each bound of a claim: the index of the case whose number applies, or None if `otherwise` applies.
Choices = tuple[int | None, ...]


@dataclass(frozen=True)
class Reading:
    """The contract file with one plain number in place of each bound that has cases. only_on: the workloads to which
    these numbers apply, by index of the claim."""

    document: Document
    choices: dict[int, Choices]
    only_on: dict[int, set[str]]


class Bounds:
    """All bounds with cases in a contract file."""

    def __init__(self, document: Document) -> None:
        """Find the bounds with cases in every claim, and add errors in the cases to `errors`."""
        self.document = document
        self.errors: list[ContractError] = []
        self.by_claim: dict[int, list[Found]] = {}
        claims = document.value.get("claims")
        for number, claim in enumerate(claims if isinstance(claims, list) else []):
            found = list(self._of_claim(number, claim))
            if found:
                self.by_claim[number] = found
        self._sets: dict[int, dict[Choices, set[str]]] = {}
        if not self.errors:
            self._sets = {number: self._sets_of(number, found) for number, found in self.by_claim.items()}

    def _of_claim(self, number: int, claim: Any) -> Iterator[Found]:
        path: Path = ("claims", number)
        parts = claim.get("parts") if isinstance(claim, dict) else None
        if isinstance(parts, list):
            for part, judgement in enumerate(parts):
                yield from self._of_judgement(number, part, (*path, "parts", part), judgement)
        else:
            yield from self._of_judgement(number, 0, path, claim)

    def _of_judgement(self, claim: int, part: int, path: Path, judgement: Any) -> Iterator[Found]:
        kind = judgement.get("kind") if isinstance(judgement, dict) else None
        for field in numbers_of(kind) if isinstance(kind, str) and kind in part_kinds() else ():
            value = judgement
            for name in field.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if isinstance(value, dict):
                place = (*path, *field.split("."))
                try:
                    bound = ByCase.model_validate(value)
                except ValidationError as error:
                    self.errors += explain(error, self.document, place, ByCase)
                else:
                    found = Found(claim, part, path, field, [case.conditions() for case in bound.cases])
                    self._note_what_is_no_number(found, bound)
                    yield found

    def _note_what_is_no_number(self, found: Found, bound: ByCase) -> None:
        """Record an error for each value of the bound that is not a number. null is an error too, even if the field
        allows null."""
        for choice, value in ((None, bound.otherwise), *((at, case.value) for at, case in enumerate(bound.cases))):
            if isinstance(value, bool) or not isinstance(value, int | float):
                rule = f"'{found.place[-1]}' must be a valid number"
                place, remedy = found.value_at(choice), number_remedy(value)
                self.errors.append(self.document.error(place, rule, got=shown(value), remedy=remedy))

    def _sets_of(self, number: int, found: Sequence[Found]) -> dict[Choices, set[str]]:
        """Return the combinations of cases that can apply to claim number `number`, each with the workloads on which it
        applies.

        A bound such as `at_least` may list cases: numbers with conditions, such as a GPU. If the conditions of no case
        are met, the number under `otherwise` applies. A combination has the index of one case for each bound, or None
        for `otherwise`. The first combination has None for all bounds. Record an error for each case that can never
        apply.
        """
        named = self.document.value["claims"][number].get("judged_on")
        workloads = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        sets: dict[Choices, set[str]] = {(None,) * len(found): set()}
        for situation in self._situations(workloads, found):
            choices = tuple(_choice(one.cases, situation) for one in found)
            sets.setdefault(choices, set()).add(situation.workload)
        if len(sets) > MOST_SETS:
            self._too_many(
                found, f"the bounds of a claim must combine to at most {MOST_SETS} sets of numbers", len(sets)
            )
        for at, one in enumerate(found):
            for case in set(range(len(one.cases))) - {choices[at] for choices in sets}:
                self._never_wins(one, case, workloads)
        return sets

    def _situations(self, workloads: Sequence[str], found: Sequence[Found]) -> Iterator[Situation]:
        cases = [case for one in found for case in one.cases]
        words = sorted({case.gpu for case in cases if case.gpu is not None})
        # The name of one GPU may meet the conditions of two cases, so every pair of the cases' words is also tried as a
        # name.
        together = [" ".join(two) for two in combinations(words, 2)]
        named = {case.capability for case in cases} | {case.capability_at_least for case in cases}
        capabilities = sorted({each for one in named if one is not None for each in _around(one)})
        dtypes = sorted({case.dtype for case in cases if case.dtype is not None})
        gpus: list[str | None] = [None, *words, *together]
        number = len(workloads) * len(gpus) * (1 + len(capabilities)) * (1 + len(dtypes))
        if number > MOST_SITUATIONS:
            rule = f"the conditions of a claim must distinguish at most {MOST_SITUATIONS} situations"
            return self._too_many(found, rule, number)
        for workload, gpu, capability, dtype in product(workloads, gpus, [None, *capabilities], [None, *dtypes]):
            yield Situation(workload, gpu, capability, dtype)
        return None

    def _too_many(self, found: Sequence[Found], rule: str, number: int) -> None:
        self.errors.append(self.document.error(found[0].place, rule, got=str(number), remedy="use fewer cases"))

    def _never_wins(self, one: Found, case: int, workloads: Sequence[str]) -> None:
        workload = one.cases[case].workload
        path: Path = (*one.place, "cases", case)
        if workload is not None and workload not in workloads:
            rule, got, remedy = (
                "the `workload` of a case must be one of the claim's workloads",
                f"'{workload}'",
                nearest(workload, workloads),
            )
            self.errors.append(self.document.error((*path, "workload"), rule, got=got, remedy=remedy))
        elif workloads and not self.errors:
            rule, remedy = "a case must be able to apply", "move it up, or remove it"
            got = f"an earlier case that applies wherever this case does ({one.cases[case]})"
            self.errors.append(self.document.error(path, rule, got=got, remedy=remedy))

    def readings(self) -> list[Reading]:
        """Return copies of the contract file with plain numbers in place of the bounds. Every combination of numbers
        that can apply to a claim occurs in one of the copies. In the first copy, every bound is the number under
        `otherwise`. If there are no bounds with cases, return only the unchanged contract file."""
        sets = {number: list(each.items()) for number, each in self._sets.items()}
        count = max((len(each) for each in sets.values()), default=1)
        return [
            self._reading({number: each[at if at < len(each) else 0] for number, each in sets.items()})
            for at in range(count)
        ]

    def _reading(self, chosen: dict[int, tuple[Choices, set[str]]]) -> Reading:
        if not chosen:
            return Reading(self.document, {}, {})
        document, positions = self.document, dict(self.document.values)
        value = document.value
        for number, (choices, _) in chosen.items():
            for one, choice in zip(self.by_claim[number], choices, strict=True):
                place = one.value_at(choice)
                value = _with(value, one.place, document.at(place))
                positions[one.place] = document.position(place)
        return Reading(
            replace(document, value=value, values=positions),
            {number: choices for number, (choices, _) in chosen.items()},
            {number: workloads for number, (_, workloads) in chosen.items()},
        )

    def attach(self, readings: Sequence[tuple[Reading, Contract]]) -> Contract:
        """Return the contract of the first reading, with the bounds' cases attached. readings: each copy of the
        contract file, with the contract that its validation gave."""
        contract = readings[0][1]
        for number, found in self.by_claim.items():
            valid = {reading.choices[number]: parts_of(each.claims[number]) for reading, each in readings}
            for position, part in enumerate(parts_of(contract.claims[number])):
                own = [(at, one) for at, one in enumerate(found) if one.part == position]
                if own:
                    variants: list[Judged] = [parts[position].model_copy() for parts in valid.values()]
                    part.depend({one.field: _bound(one, at, position, valid) for at, one in own}, variants)
        return contract


def _bound(one: Found, at: int, position: int, valid: dict[Choices, list[Judged]]) -> Bound:
    """Return a bound with its cases. The numbers come from the validated copies of the contract, not from the file."""
    values = {choices[at]: parts[position].value_at(one.field) for choices, parts in valid.items()}
    cases = [(conditions, _number(values[case])) for case, conditions in enumerate(one.cases)]
    return Bound(_number(values[None]), tuple(cases))


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"a bound must be a number, not {value!r}")
    return value


def _choice(cases: Sequence[Conditions], situation: Situation) -> int | None:
    return next((number for number, case in enumerate(cases) if case.hold(situation)), None)


def _around(capability: str) -> list[str]:
    """Return the compute capability, a lower one, and the next higher one. A condition that names this capability can
    be tested with these three: below it, equal to it and above it."""
    major, minor = (int(number) for number in capability.split("."))
    return ["0.1", capability, f"{major}.{minor + 1}"]


def _with(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of nested mappings and lists in which the value at a path is `new`."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _with(value[path[0]], path[1:], new)
    return copy


@cache
def numbers_of(kind: str) -> list[str]:
    """Return, for a kind of claim, the paths of the number fields whose values can turn PASS into FAIL. Fields that are
    also settings of this kind's runs are left out."""
    model, row = part_model(kind), kinds()[kind]
    planned = {name for settings in row.probes.values() for name in settings}
    return [path for path in marks(model, Demand) if path.split(".")[0] not in planned and _is_number(model, path)]


def _is_number(model: type[BaseModel], path: str) -> bool:
    *above, name = path.split(".")
    for field in above:
        model = model_within(model, field) or model
    return any(one in (int, float) for one in flat(model.model_fields[name].annotation))
