"""Split a gate or a drill into shards: each is one command and one job. What takes longest begins first.

No shard waits for another: claims that share runs are in one shard, and a claim is never split between machines. A
shard of several GPUs begins before all others, while every GPU is free.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from harness.contract.load import LoadedContract
from harness.contract.schema import AnyClaim, parts_of
from harness.planning.gpu_needs import gpus_needed, needs_cuda
from harness.run_directory.costs import Busy, busy_seconds

MOST_FAULTS = 16  # of a drill's shard: an untimed fault took about twelve seconds on an H200


@dataclass(frozen=True)
class Shard:
    """One call of `harness verify`, or, with `drill`, of `harness drill`; `faults` empty: all.

    on_gpu: some unit of it needs one. gpus: as many as the unit with most uses, where there are any. seconds: that
    it took when it was last recorded; infinite: that is not known of some unit.
    """

    name: str
    contract: Path
    claims: tuple[str, ...]
    faults: tuple[str, ...] = ()
    drill: bool = False
    on_gpu: bool = False
    gpus: int = 1
    seconds: float = math.inf

    def words(self, but: Collection[str] = ()) -> list[str]:
        """Return the words after `harness` on the command line, without options; `but`: claims that are left out."""
        narrowed = [word for claim in self.claims if claim not in but for word in ("--claim", claim)]
        narrowed += [word for fault in self.faults for word in ("--fault", fault)]
        return ["drill" if self.drill else "verify", str(self.contract), *narrowed]


Recorded = Mapping[tuple[str, str, str], Sequence[Busy]]
"""Busy times of each unit (contract, claim, workload), as `busy_times` returns them."""


def units_of(contracts: Sequence[LoadedContract]) -> list[tuple[str, str, str]]:
    """Return contract, claim and workload of every unit."""
    loaded = (one.contract for one in contracts)
    return [(one.id, claim.id, workload) for one in loaded for claim in one.claims for workload in claim.judged_on]


def gate_shards(contracts: Sequence[LoadedContract], recorded: Recorded | None = None, places: int = 1) -> list[Shard]:
    """Return every claim once: a shard for each timing claim, and one for each contract's others; longest first.

    A contract that alone takes longer than all places together should is split where its claims shared no run.
    """
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
    whole = _longest_first(timed + others, recorded, contracts)
    fair = sum(shard.seconds for shard in whole if shard.seconds < math.inf) / places
    parts = [part for shard in whole for part in _split(shard, fair, recorded or {}, contracts)]
    return whole if len(parts) == len(whole) else _longest_first(parts, recorded, contracts)


def _split(shard: Shard, fair: float, recorded: Recorded, contracts: Sequence[LoadedContract]) -> list[Shard]:
    """Return shards of at most `fair` seconds, of claims that share runs more; the shard itself if it is known to be
    short, or is not known.
    """
    if not fair < shard.seconds < math.inf:
        return [shard]
    [loaded] = [one for one in contracts if one.path == shard.contract]
    groups: list[tuple[tuple[str, ...], set[Busy]]] = []
    for name in shard.claims:
        busy = {one for unit, times in recorded.items() if unit[:2] == (loaded.contract.id, name) for one in times}
        joined = [group for group in groups if group[1] & busy]
        groups = [group for group in groups if group not in joined]
        groups.append(((*chain.from_iterable(group[0] for group in joined), name), busy.union(*(g[1] for g in joined))))
    bins: list[tuple[tuple[str, ...], set[Busy]]] = []
    for claims, busy in sorted(groups, key=lambda group: -busy_seconds(group[1])):
        fitting = next((n for n, one in enumerate(bins) if busy_seconds(one[1] | busy) <= fair), len(bins))
        bins[fitting : fitting + 1] = [
            (bins[fitting][0] + claims, bins[fitting][1] | busy) if fitting < len(bins) else (claims, busy)
        ]
    return [_shard(shard.name, loaded, claims) for claims, _ in bins]


def drill_shards(contracts: Sequence[LoadedContract], recorded: Recorded | None = None) -> list[Shard]:
    """Return every fault of every claim once, next to its control. Each fault of a timing has its own shard.

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
    return _longest_first(timed + others, recorded, contracts)


def _longest_first(
    shards: Sequence[Shard], recorded: Recorded | None, contracts: Sequence[LoadedContract]
) -> list[Shard]:
    """Return the shards with their names and seconds, in the order in which they begin.

    Those of unknown length begin first, in the order given: timings, then others. Of a drill they are so many times as
    long as it plants faults, and once for the control.
    """
    by_path = {loaded.path: loaded.contract for loaded in contracts}
    lasting = []
    for shard in shards:
        contract = by_path[shard.contract]
        claims = [claim for claim in contract.claims if claim.id in shard.claims]
        units = ((contract.id, claim.id, workload) for claim in claims for workload in claim.judged_on)
        times = [(recorded or {}).get(unit, ()) for unit in units]
        seconds = busy_seconds(chain.from_iterable(times)) if all(times) else math.inf
        planted = len(shard.faults) or max(len(claim.falsified_by) for claim in claims)
        lasting.append(replace(shard, seconds=seconds * (1 + planted if shard.drill else 1)))
    return sorted(_named_apart(lasting), key=lambda shard: (-shard.gpus, -shard.seconds))


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
