"""Split a gate or a drill into shards: each is one command and one job. Timings come first: they take longest.

No shard waits for another: claims that share runs are in one shard, and a claim is never split between machines.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from harness.contract.claims import AnyClaim, parts_of
from harness.contract.load import LoadedContract
from harness.planning.gpu_needs import gpus_needed, needs_cuda

MOST_FAULTS = 16  # of a drill's shard: an untimed fault took about twelve seconds on an H200


@dataclass(frozen=True)
class Shard:
    """One call of `harness verify`, or, with `drill`, of `harness drill`; `faults` empty: all.

    on_gpu: some unit of it needs one. gpus: as many as the unit with most uses, where there are any.
    """

    name: str
    contract: Path
    claims: tuple[str, ...]
    faults: tuple[str, ...] = ()
    drill: bool = False
    on_gpu: bool = False
    gpus: int = 1

    def words(self, but: Collection[str] = ()) -> list[str]:
        """Return the words after `harness` on the command line, without options; `but`: claims that are left out."""
        narrowed = [word for claim in self.claims if claim not in but for word in ("--claim", claim)]
        narrowed += [word for fault in self.faults for word in ("--fault", fault)]
        return ["drill" if self.drill else "verify", str(self.contract), *narrowed]


def gate_shards(contracts: Sequence[LoadedContract]) -> list[Shard]:
    """Return every claim once: a shard for each timing claim, then one for each contract's others, largest first."""
    timed, others = [], []
    for loaded in contracts:
        rest = []
        for claim in loaded.contract.claims:
            if _is_timed(claim):
                timed.append(_shard(claim.id, loaded, (claim.id,)))
            else:
                rest.append(claim.id)
        if rest:
            others.append(_shard(loaded.contract.id, loaded, tuple(rest)))
    return _named_apart(timed + sorted(others, key=lambda shard: -len(shard.claims)))


def drill_shards(contracts: Sequence[LoadedContract]) -> list[Shard]:
    """Return every fault of every claim once, next to its control. Each fault of a timing has its own shard, first.

    Claims that name no fault are in no shard.
    """
    timed, others = [], []
    for loaded in contracts:
        untimed: list[AnyClaim] = []
        for claim in loaded.contract.claims:
            if not _is_timed(claim):
                untimed += [claim] if claim.falsified_by else []
                continue
            timed += [
                _shard(f"{claim.id}-{fault}", loaded, (claim.id,), (fault,), drill=True) for fault in claim.falsified_by
            ]
        name = loaded.contract.id
        others += [
            _shard(f"{name}-{number}", loaded, claims, drill=True) for number, claims in enumerate(_in_groups(untimed))
        ]
    return _named_apart(timed + others)


def _named_apart(shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards, each with a unique name in any case: claims of two contracts may share an id."""
    names: set[str] = set()
    apart = []
    for shard in shards:
        others = (f"{shard.name}-{number}" for number in count(2))
        name = next(name for name in chain([shard.name], others) if name.casefold() not in names)
        names.add(name.casefold())
        apart.append(replace(shard, name=name))
    return apart


def _shard(
    name: str, loaded: LoadedContract, claims: tuple[str, ...], faults: tuple[str, ...] = (), *, drill: bool = False
) -> Shard:
    contract = loaded.contract
    units = [
        (contract, claim, contract.workloads[name])
        for claim in contract.claims
        if claim.id in claims
        for name in claim.judged_on
    ]
    on_gpu = any(needs_cuda(*unit) for unit in units)
    gpus = max([1, *(gpus_needed(*unit) for unit in units)])
    return Shard(name, loaded.path, claims, faults, drill, on_gpu, gpus)


def _in_groups(claims: Sequence[AnyClaim]) -> list[tuple[str, ...]]:
    """Return neighbouring claims in groups, each with at most `MOST_FAULTS` faults unless one claim has more."""
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
