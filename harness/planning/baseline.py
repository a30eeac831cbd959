"""Handle baselines of another commit: their systems, and what of a claim cannot be compared between two commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.commits.checkout import Checkout, checked_out
from harness.contract.claims import AnyClaim, AnyPart, parts_of
from harness.contract.schema import Contract
from harness.contract.strict_yaml import nearest
from harness.errors import SystemResolutionError, UsageError
from harness.evidence.base import Obstacle
from harness.evidence.descriptions import SystemDescription
from harness.evidence.environment_records import SHORT
from harness.kinds import probe_of
from harness.planning.gpu_needs import ranks_of
from harness.planning.obstacles import lacking
from harness.platform.paths import without_folders

Descriptions = Mapping[str, SystemDescription | SystemResolutionError]


class HasContract(Protocol):
    """A loaded contract."""

    @property
    def contract(self) -> Contract: ...


@dataclass(frozen=True)
class Baseline:
    """The commit of arms that a claim names as `baseline`; None: that of all other arms.

    descriptions: what its systems say of themselves there, or why nothing; tree: the folder in which it stands.
    """

    commit: str | None = None
    descriptions: Descriptions = field(default_factory=dict)
    tree: str = ""


def baseline_systems(contracts: Sequence[Contract]) -> list[str]:
    """Return the systems of all arms that some claim names as `baseline`, each once."""
    arms = [
        contract.arms[part.arms()["baseline"]].system or contract.system
        for contract in contracts
        for claim in contract.claims
        for part in parts_of(claim)
        if "baseline" in part.arms()
    ]
    return list(dict.fromkeys(arms))


def baseline_checkout(
    contracts: Sequence[HasContract], name: str | None, reports: Path
) -> AbstractContextManager[Checkout | None]:
    """Check out the commit `name` in a worktree, for the contracts' baselines; without a name do nothing.

    Raises UsageError if no claim names a baseline, and as `checked_out` does.
    """
    if name is None:
        return nullcontext()
    systems = baseline_systems([loaded.contract for loaded in contracts])
    if not systems:
        raise UsageError("--baseline is the commit of arms that claims name as `baseline`", got="no such claim")
    return checked_out(name, systems, reports)


def commit_obstacle(contract: Contract, claim: AnyClaim, baseline: Baseline) -> Obstacle | None:
    """Return why a claim cannot be judged with its baseline of that commit; None if it can, or has no baseline."""
    for part in parts_of(claim):
        if "baseline" in part.arms():
            if baseline.commit is None:
                found = _with_itself(contract, part)
            else:
                found = (
                    _of_ranks(contract, part)
                    or _one_process(part)
                    or _unlike_there(contract, part, baseline, baseline.commit)
                )
            if found is not None:
                return found
    return None


def _with_itself(contract: Contract, part: AnyPart) -> Obstacle | None:
    """Return an obstacle for two arms of equal settings: without a commit for one of them they are the same."""
    arms = part.arms()
    candidate, baseline = arms.get(part.candidate_path), arms["baseline"]
    if candidate is None or not contract.same_settings(candidate, baseline):
        return None
    message = (
        f"arms {candidate} and {baseline} have the same settings: name a commit for {baseline} with --baseline REF"
    )
    return Obstacle(reason="needs_baseline", message=message)


def _of_ranks(contract: Contract, part: AnyPart) -> Obstacle | None:
    if ranks_of(contract, [part]) == 1:
        return None
    message = f"{part.kind} is judged of two commits where their arms have one rank"
    return Obstacle(reason="one_rank_only", message=message)


def _one_process(part: AnyPart) -> Obstacle | None:
    if probe_of(part).across_commits:
        return None
    message = f"{part.kind} executes its arms in one process, which holds the modules of one commit only"
    return Obstacle(reason="one_commit_a_process", message=message)


def _unlike_there(contract: Contract, part: AnyPart, baseline: Baseline, commit: str) -> Obstacle | None:
    """Return an obstacle if the commit's system cannot be described, or lacks what the arm asks for."""
    name = part.arms()["baseline"]
    arm = contract.arms[name]
    system = arm.system or contract.system
    there = baseline.descriptions[system]
    at = f"at {commit[:SHORT]}"
    if isinstance(there, SystemResolutionError):
        why = without_folders(str(there).replace(f"{baseline.tree}/", ""))
        return Obstacle(reason="system_not_described", message=f"arm {name}, {at}: {why}")
    unknown = [setting for setting in arm.settings() if setting not in there.arm_options]
    lacks = lacking(part, name, arm, there)
    if lacks is None and unknown:
        lacks = f"does not know the setting `{unknown[0]}`; {nearest(unknown[0], there.arm_options) or 'it has none'}"
    if lacks is None:
        return None
    return Obstacle(reason="capability_missing", message=f"arm {name}: {there.name} {at} {lacks}")
