"""Join run directories: one, or the shards of a gate that was run in parts.

Each unit gets the evidence of its earliest attempt; a later repeat never replaces it. A shard that only said that
its machine could not do it has made no attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.contract.schema import Contract
from harness.errors import EvidenceError
from harness.evidence.base import Obstacle
from harness.evidence.plan_records import Unit
from harness.evidence.run_evidence import RunEvidence
from harness.run_directory.bundle import Bundle

NOT_IN_ANY_SHARD = Obstacle(reason="not_planned", message="no shard of this gate planned this unit")


@dataclass(frozen=True)
class Attempt:
    """A unit with the evidence that decides it, in the order of its plan; `bundle` is None for a unit never planned."""

    unit: Unit
    evidence: list[RunEvidence]
    bundle: Bundle | None


def attempts(bundles: Sequence[Bundle], contracts: Sequence[Contract]) -> list[Attempt]:
    """The units of one run directory as planned, or every unit of the contracts over several shards.

    Raises EvidenceError for shards that do not belong together.
    """
    if len(bundles) == 1:
        return [_attempt(bundles[0], unit) for unit in bundles[0].header.units]
    refuse_mixed(bundles)
    by_start = sorted(bundles, key=lambda bundle: (bundle.header.started_at, bundle.path.name))
    units = [
        Unit(contract=contract.id, claim=claim.id, workload=workload, obstacle=NOT_IN_ANY_SHARD)
        for contract in contracts
        for claim in contract.claims
        for workload in claim.on
    ]
    return [_earliest(unit, by_start) for unit in units]


def _earliest(wanted: Unit, by_start: Sequence[Bundle]) -> Attempt:
    name = (wanted.contract, wanted.claim, wanted.workload)
    planned = [
        _attempt(bundle, unit)
        for bundle in by_start
        for unit in bundle.header.units
        if (unit.contract, unit.claim, unit.workload) == name
    ]
    made = [attempt for attempt in planned if _was_made(attempt)]
    return next(iter(made or planned), Attempt(wanted, [], None))


def _attempt(bundle: Bundle, unit: Unit) -> Attempt:
    return Attempt(unit, [bundle.evidence(run) for run in unit.runs], bundle)


def _was_made(attempt: Attempt) -> bool:
    return attempt.unit.obstacle is None and all(run.obstacle is None for run in attempt.evidence)


def refuse_mixed(bundles: Sequence[Bundle]) -> None:
    """Raise EvidenceError unless the shards judge the same contracts with the same sources, and none is a drill."""
    first = bundles[0]
    contracts: dict[str, tuple[str, Bundle]] = {}
    for bundle in bundles:
        header = bundle.header
        if header.purpose != "verify":
            planted = f"fault `{header.fault}`" if header.purpose == "fault" else "a fire drill"
            raise EvidenceError("a shard of a gate plants no fault", where=str(bundle.path), got=planted)
        if header.digests.source != first.header.digests.source:
            raise EvidenceError(
                "shards come from the same sources",
                where=str(bundle.path),
                got=f"source digest {header.digests.source[:12]}, {first.path} has {first.header.digests.source[:12]}",
                remedy="run the shards again from one commit",
            )
        for name, digest in header.digests.contracts.items():
            known, other = contracts.setdefault(name, (digest, bundle))
            if known != digest:
                raise EvidenceError(
                    "shards judge the same contracts",
                    where=str(bundle.path),
                    got=f"contract {name} with digest {digest[:12]}, {other.path} has {known[:12]}",
                    remedy="run the shards again with one version of the contract",
                )
