"""Claims: a judgement of one kind, or several, with the text that every claim carries."""

# ruff: noqa: RUF012 - pydantic copies defaults, and ruff knows its models in the file of their base only

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from types import new_class
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from harness.contract.base import Judged, Name, Strict, Text
from harness.kinds import kinds, resolve

AnyPart = Judged


class ClaimText(Strict):
    """What every claim says beside its judgement."""

    id: Name
    """Name of the claim, unique in its contract."""
    title: Text
    """The claim in one sentence."""
    judged_on: Annotated[list[Name], Field(min_length=1)]
    """Workloads it is judged on; each is a unit with its own verdict."""
    why: Text
    """Where each number comes from."""
    if_fails: Text
    """What usually causes a failure."""
    falsified_by: list[Name] = []
    """Planted faults that must break it."""
    upstream: Text | None = None
    """The claim it comes from."""
    tags: list[Name] = []
    """What `--tag` selects it by; left out, the contract's."""
    owner: Text | None = None
    """Who answers for it; left out, the contract's."""


class AnyClaim(Judged, ClaimText):
    """A claim of whatever kind."""


class _OneOf:
    """A union by `kind`, of the models of all kinds. The table is read when pydantic first validates."""

    def __init__(self, models: Callable[[], Mapping[str, type[Judged]]]) -> None:
        self._models = models

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {kind: handler.generate_schema(model) for kind, model in self._models().items()}
        return core_schema.tagged_union_schema(choices, discriminator="kind")


@cache
def part_models() -> dict[str, type[Judged]]:
    """The model of a claim's part, by its kind. Raises KindError for one that cannot be imported."""
    return {name: resolve(kind.model) for name, kind in kinds().items()}


@cache
def claim_models() -> dict[str, type[AnyClaim]]:
    """The model of a whole claim, by its kind."""
    return {name: _claim_of(model) for name, model in part_models().items()} | {"composite": CompositeClaim}


def _claim_of(model: type[Judged]) -> type[AnyClaim]:
    """The kind's model with the text of a claim; `MemorySteady` becomes `MemorySteadyClaim`."""
    claim: type[AnyClaim] = new_class(
        f"{model.__name__}Claim", (model, AnyClaim), exec_body=lambda body: body.update(__module__=model.__module__)
    )
    return claim


class CompositeClaim(AnyClaim):
    """A claim of several parts, each of one kind; it is as good as the worst of them."""

    kind: Literal["composite"]
    """Joins several judgements."""
    parts: Annotated[list[Annotated[AnyPart, _OneOf(part_models)]], Field(min_length=2)]
    """The judgements; the worst decides."""


Claim = Annotated[AnyClaim, _OneOf(claim_models)]


def parts_of(claim: AnyClaim) -> list[AnyPart]:
    """The judgements a claim consists of: itself, or its parts."""
    return list(claim.parts) if isinstance(claim, CompositeClaim) else [claim]


def part_names(claim: CompositeClaim) -> list[str]:
    """One name a part: its kind, with its number among the parts of that kind where there are several."""
    total, seen, names = Counter(part.kind for part in claim.parts), Counter[str](), []
    for part in claim.parts:
        seen[part.kind] += 1
        names.append(part.kind if total[part.kind] == 1 else f"{part.kind}.{seen[part.kind]}")
    return names
