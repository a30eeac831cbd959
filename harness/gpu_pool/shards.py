"""What each GPU takes in turn: a part of a gate or of a drill, as one command. Timings first: they take longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.contract.claims import AnyClaim, parts_of
from harness.contract.load import LoadedContract
from harness.python_path import child_command

MOST_FAULTS = 16  # of a drill's shard: an untimed fault took about twelve seconds on an H200


@dataclass(frozen=True)
class Shard:
    """One call of `harness verify`, or, with `drill`, of `harness drill`; `faults` empty: all."""

    name: str
    contract: Path
    claims: tuple[str, ...]
    faults: tuple[str, ...] = ()
    drill: bool = False

    def command(self, reports: Path, passed_on: Sequence[str] = ()) -> list[str]:
        """The process to start; its run directory will be `reports/name`. `passed_on`: further options."""
        narrowed = [word for claim in self.claims for word in ("--claim", claim)]
        narrowed += [word for fault in self.faults for word in ("--fault", fault)]
        call = ["drill" if self.drill else "verify", str(self.contract), *narrowed, *passed_on]
        return [*child_command("harness"), *call, "--reports", str(reports), "--name", self.name]


def gate_shards(contracts: Sequence[LoadedContract]) -> list[Shard]:
    """Every claim once: each timing claim by itself, then the other claims of each contract, many claims first."""
    timed, others = [], []
    for loaded in contracts:
        rest = []
        for claim in loaded.contract.claims:
            if _is_timed(claim):
                timed.append(Shard(claim.id, loaded.path, (claim.id,)))
            else:
                rest.append(claim.id)
        if rest:
            others.append(Shard(loaded.contract.id, loaded.path, tuple(rest)))
    return timed + sorted(others, key=lambda shard: -len(shard.claims))


def drill_shards(contracts: Sequence[LoadedContract]) -> list[Shard]:
    """Every fault of every claim once, those of timings first, each in a shard of its own beside its control."""
    timed, others = [], []
    for loaded in contracts:
        untimed: list[AnyClaim] = []
        for claim in loaded.contract.claims:
            if not _is_timed(claim):
                untimed.append(claim)
                continue
            timed += [
                Shard(f"{claim.id}-{fault}", loaded.path, (claim.id,), (fault,), drill=True)
                for fault in claim.falsified_by
            ]
        name = loaded.contract.id
        others += [
            Shard(f"{name}-{number}", loaded.path, claims, drill=True)
            for number, claims in enumerate(_in_groups(untimed))
        ]
    return timed + others


def _in_groups(claims: Sequence[AnyClaim]) -> list[tuple[str, ...]]:
    """Neighbouring claims together, with at most `MOST_FAULTS` faults among them."""
    groups: list[list[str]] = []
    planted = MOST_FAULTS
    for claim in claims:
        if planted + len(claim.falsified_by) > MOST_FAULTS:
            groups.append([])
            planted = 0
        groups[-1].append(claim.id)
        planted += len(claim.falsified_by)
    return [tuple(group) for group in groups]


def _is_timed(claim: AnyClaim) -> bool:
    return any(part.kind == "throughput_ratio" for part in parts_of(claim))
