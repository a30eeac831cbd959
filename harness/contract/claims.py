"""Define claims: a judgement of one kind, or of several, with the text that every claim carries."""

# ruff: noqa: RUF012 - pydantic copies defaults, and ruff knows its models in the file of their base only

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import new_class
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, SchemaValidator, core_schema

from harness.contract.base import UNREAD, Demand, Judged, Name, NoDemand, Reason, Strict, Text, Words, marks
from harness.contract.guards import EndName
from harness.errors import KindError
from harness.kinds import kinds, resolve

AnyPart = Judged


class ClaimText(Strict):
    """What every claim says besides its judgement."""

    id: Name
    """Name of the claim, unique in its contract."""
    title: Words
    """The claim in one sentence."""
    judged_on: Annotated[list[Name], Field(min_length=1)]
    """Workloads it is judged on; each is a unit with its own verdict."""
    why: Words
    """Where each number comes from."""
    if_fails: Words
    """What usually causes a failure."""
    falsified_by: list[Name] = []
    """Planted faults that must break it."""
    upstream: Annotated[Text | None, UNREAD] = None
    """The claim it comes from."""
    tags: Annotated[list[Name], UNREAD] = []
    """What `--tag` selects it by; left out, the contract's."""
    owner: Annotated[Text | None, UNREAD] = None
    """Who answers for it; left out, the contract's."""
    may_end_apart: dict[EndName, Reason] = {}
    """Counts that may end apart where equal bits are demanded, by the name that a verdict gives them
    (`optimizer group0.step`), each with the reason. Each must be a whole number at the end."""


class AnyClaim(Judged, ClaimText):
    """A claim of whatever kind."""


class _OneOf:
    """A union by `kind`, which builds the models of those kinds alone that a contract names.

    It validates, and says what is wrong, as pydantic's own union of all of them does: building that took as long as
    reading all contracts of this repository.
    """

    def __init__(self, kind_names: Callable[[], Sequence[str]], model_of: Callable[[str], type[Judged]]) -> None:
        self._names, self._model_of = kind_names, model_of
        self._unions: dict[str, SchemaValidator] = {}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(_union({name: self._model_of(name) for name in self._names()}))

    def _validated(self, value: Any) -> Any:
        names = self._names()
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        named = isinstance(value, dict) and "kind" in value
        if kind not in names if isinstance(kind, str) else named:
            expected = ", ".join(map(repr, names))
            raise PydanticKnownError(
                "union_tag_invalid", {"discriminator": "'kind'", "tag": str(kind), "expected_tags": expected}
            )
        # what has no kind is refused by any of them, and in the same words
        chosen = kind if isinstance(kind, str) else names[0]
        if chosen not in self._unions:
            self._unions[chosen] = SchemaValidator(_union({chosen: self._model_of(chosen)}))
        return self._unions[chosen].validate_python(value)


def _union(models: Mapping[str, type[Judged]]) -> CoreSchema:
    for model in models.values():
        model.model_rebuild()  # their schemas are built at first use
    choices = {kind: model.__pydantic_core_schema__ for kind, model in models.items()}
    return core_schema.tagged_union_schema(choices, discriminator="kind")


def part_kinds() -> list[str]:
    """Return the kinds that a part of a claim may have."""
    return list(kinds())


def claim_kinds() -> list[str]:
    """Return the kinds that a claim may have, `composite` included."""
    return [*kinds(), "composite"]


@cache
def part_model(kind: str) -> type[Judged]:
    """Return the model of a claim part of this kind. Raises KindError if the model cannot be imported, or a field of it
    does not say if it can turn PASS into FAIL: no fault would be asked for."""
    model: type[Judged] = resolve(kinds()[kind].model)
    marked = {path.partition(".")[0] for path in (*marks(model, Demand), *marks(model, NoDemand))}
    unmarked = [name for name in model.model_fields if name not in {"kind", *Judged.model_fields, *marked}]
    if unmarked:
        rule = "each field of a claim kind's model has the type `ArmName`, or is annotated with `Demand` or `NoDemand`"
        raise KindError(rule, where=f"claim kind '{kind}'", got=", ".join(unmarked), remedy="annotate the field")
    return model


@cache
def claim_model(kind: str) -> type[AnyClaim]:
    """Return the model of a whole claim of this kind: the part's model plus the text fields of a claim.

    `MemorySteady` becomes `MemorySteadyClaim`.
    """
    if kind == "composite":
        return CompositeClaim
    model = part_model(kind)
    claim: type[AnyClaim] = new_class(
        f"{model.__name__}Claim", (model, AnyClaim), exec_body=lambda body: body.update(__module__=model.__module__)
    )
    return claim


class CompositeClaim(AnyClaim):
    """A claim of several parts, each of one kind; it is as good as the worst of them."""

    kind: Literal["composite"]
    """Joins several judgements."""
    parts: Annotated[list[Annotated[AnyPart, _OneOf(part_kinds, part_model)]], Field(min_length=2)]
    """The judgements; the worst decides."""


Claim = Annotated[AnyClaim, _OneOf(claim_kinds, claim_model)]


def parts_of(claim: AnyClaim) -> list[AnyPart]:
    """Return the judgements that a claim consists of: its parts, or the claim itself if it is not composite."""
    return list(claim.parts) if isinstance(claim, CompositeClaim) else [claim]


def part_names(claim: CompositeClaim) -> list[str]:
    """Return one name for each part: its kind, numbered (`kind.1`) if several parts of the claim have that kind."""
    total, seen, names = Counter(part.kind for part in claim.parts), Counter[str](), []
    for part in claim.parts:
        seen[part.kind] += 1
        names.append(part.kind if total[part.kind] == 1 else f"{part.kind}.{seen[part.kind]}")
    return names
