"""Which arms of a run get a planted fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.contract.schema import AnyClaim, HostSyncs, arms_of, parts_of
from harness.system.protocol import FaultDescription


@dataclass(frozen=True)
class PlannedFault:
    """A fault to plant in a contract's runs, in `arms`; no description: the contract's systems do not offer it."""

    name: str
    description: FaultDescription | None
    arms: frozenset[str]


def plan_fault(name: str, offered: Mapping[str, FaultDescription], claims: Sequence[AnyClaim]) -> PlannedFault:
    """Plant fault `name` relative to the claims that it should break: those that list it or that it lists.

    When it should break none of the given claims, it is planted relative to all of them: someone wants to see
    what it does.
    """
    description = offered.get(name)
    if description is None:
        return PlannedFault(name, None, frozenset())
    broken = [claim for claim in claims if name in claim.falsified_by or claim.id in description.breaks]
    arms: set[str] = set()
    for claim in broken or claims:
        for part in parts_of(claim):
            candidate, baseline = "candidate", "baseline"
            if isinstance(part, HostSyncs):
                # the control plays the baseline: the synchronizing twin that shows what a sync looks like
                candidate, baseline = "candidate.arm", "control.arm"
            named = arms_of(part)
            roles = {"candidate": [candidate], "baseline": [baseline], "both": [candidate, baseline]}
            arms.update(named[role] for role in roles[description.plant] if role in named)
    return PlannedFault(name, description, frozenset(arms))
