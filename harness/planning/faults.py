"""Choose which arms of a run get a planted fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.contract.claims import AnyClaim, AnyPart, parts_of
from harness.system.protocol import FaultDescription


@dataclass(frozen=True)
class PlannedFault:
    """A fault to plant in a contract's runs, in `arms`; no description: the contract's systems do not offer it."""

    name: str
    description: FaultDescription | None
    arms: frozenset[str]


def plan_fault(name: str, offered: Mapping[str, FaultDescription], claims: Sequence[AnyClaim]) -> PlannedFault:
    """Choose the arms in which fault `name` is planted, by the claims that it should break.

    These claims list the fault, or the fault lists them (a system's fault), or their kind of judgement (the harness's
    own). If none of the given claims is one, the fault is planted for all of them: someone wants to see what it does.
    """
    description = offered.get(name)
    if description is None:
        return PlannedFault(name, None, frozenset())
    parts = [part for claim in claims for part in parts_of(claim)]
    breaks = description.breaks
    named = {claim.id for claim in claims if name in claim.falsified_by or claim.id in breaks}
    broken = [part for claim in claims for part in parts_of(claim) if claim.id in named or part.kind in breaks]
    arms = {arm for part in broken or parts for arm in _planted_arms(part, description.plant)}
    return PlannedFault(name, description, frozenset(arms))


def _planted_arms(part: AnyPart, plant: Literal["candidate", "baseline", "both"]) -> list[str]:
    candidate, baseline = part.candidate_path, part.baseline_path
    roles = {"candidate": [candidate], "baseline": [baseline], "both": [candidate, baseline]}
    named = part.arms()
    return [named[role] for role in roles[plant] if role in named]
