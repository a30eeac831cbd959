"""Read the rules of judging that newer versions of the harness introduced. Find the rules that could change the
verdicts of a contract."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.contract.base import Judged, Name, Scalar, Strict, Text
from harness.contract.load import LoadedContract, Place
from harness.contract.schema import CompositeClaim, RulesVersion, parts_of
from harness.contract.strict_yaml import read


class Rule(Strict):
    """A rule of judging that version `version` of the harness introduced. `rules.yaml` explains the fields."""

    id: Name
    version: RulesVersion
    kinds: Annotated[list[str], Field(min_length=1)]
    captured: bool = False
    stated: dict[str, list[Scalar | None]] = {}  # noqa: RUF012 - pydantic copies defaults
    reasons: Annotated[list[str], Field(min_length=1)]
    when: Text
    write: Text
    into: Literal["contract", "claim", "judgement", "arms"]

    @property
    def key(self) -> str:
        """Return the key of the line that an author must write into the contract because of this rule."""
        return self.write.partition(":")[0]


@dataclass(frozen=True)
class Concern:
    """A rule that could change verdicts of a contract, the claims with these verdicts, and the places where the
    contract lacks the line that the rule requires."""

    rule: Rule
    claims: Collection[str]
    places: Collection[Place]


@cache
def rules() -> list[Rule]:
    """Return all rules that this harness knows."""
    return [Rule.model_validate(each) for each in read(Path(__file__).with_name("rules.yaml"), "rules").value["rules"]]


def current_rules() -> str:
    """Return the version of the harness that introduced the newest rule of judging."""
    return max((rule.version for rule in rules()), key=in_order)


def in_order(version: str) -> tuple[int, ...]:
    """Return a version as a tuple of numbers, for comparison."""
    return tuple(map(int, version.split(".")))


def newer_rules(loaded: LoadedContract, only: Collection[str] | None = None) -> Iterator[Concern]:
    """Yield the rules that are newer than the contract's field `rules` and could change the verdict of a claim. only:
    ids of the claims to check."""
    for rule in rules():
        if in_order(rule.version) <= in_order(loaded.contract.rules):
            continue
        claims: dict[str, None] = {}
        places: dict[Place, None] = {}
        for index, claim in enumerate(loaded.contract.claims):
            for number, part in enumerate(parts_of(claim) if only is None or claim.id in only else ()):
                own: Place = ("claims", index)
                here: Place = (*own, "parts", number) if isinstance(claim, CompositeClaim) else own
                lacking = _lacking(rule, loaded, part, here, own)
                claims |= dict.fromkeys([claim.id] if lacking else ())
                places |= dict.fromkeys(lacking)
        if places:
            yield Concern(rule, claims, places)


def _lacking(rule: Rule, loaded: LoadedContract, part: Judged, here: Place, claim: Place) -> list[Place]:
    """Return the places in the contract that lack the line required by the rule. Return an empty list if the rule does
    not concern this judgement (`part`)."""
    arms, value = part.arms(), loaded.value
    candidate = arms.get(part.candidate_path)
    captured = candidate is not None and loaded.contract.arms[candidate].capture != "none"
    written = _at(value, here)
    stated = all(written.get(field) in values for field, values in rule.stated.items())
    if part.kind not in rule.kinds or not stated or (rule.captured and not captured):
        return []
    compared = [arm for arm in (candidate, arms.get(part.baseline_path)) if arm is not None]
    into: dict[str, list[Place]] = {
        "contract": [()],
        "claim": [claim],
        "judgement": [here],
        "arms": [("arms", arm) for arm in compared],
    }
    return [place for place in into[rule.into] if rule.key in rule.stated or rule.key not in _at(value, place)]


def _at(value: Any, place: Place) -> Mapping[str, Any]:
    for key in place:
        value = value[key]
    found: Mapping[str, Any] = value
    return found
