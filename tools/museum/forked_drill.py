"""Drill contracts with every fault that they name. Runs are forks of one process (forked_runs.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked_runs

from harness.contract.load import LoadedContract
from harness.drill.faults import is_killed
from harness.drill.plan import plan_drill, runs_of
from harness.drill.recheck import evidence_of, sources_of
from harness.evidence import layout
from harness.evidence.read_run import read_run
from harness.judging.verdict import Status
from harness.system.resolve import resolve


@dataclass(frozen=True)
class Planted:
    """One fault planted for one claim, and the claim's result."""

    claim: str
    fault: str
    killed: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Drilled:
    """The result of a drill. not_held: claims that did not hold without a fault, each with its reason. planted: the
    planted faults. For a claim that cannot be judged for this trainer (NOT_RUN), neither list has an entry."""

    not_held: list[str]
    planted: list[Planted]


def drilled(contracts: Sequence[LoadedContract], claims: Sequence[str], folder: Path, limit_s: float) -> Drilled:
    """Return the result of `harness drill` for these claims. Each run is a fork with the time limit `limit_s`."""
    planned = plan_drill(
        contracts,
        claims=list(claims),
        machine=forked_runs.machine(),
        describe=lambda name: resolve(name).describe(),
    )
    for run in runs_of(planned):
        forked_runs.execute(run, folder / layout.EVIDENCE / run.id, limit_s)
    bundle: Any = SimpleNamespace(root=folder, evidence=lambda name: read_run(folder / layout.EVIDENCE / name)[1])
    controls = [
        forked_runs.verdict_on(unit, contracts, [bundle.evidence(name) for name in unit.runs])
        for unit in planned.controls.units
    ]
    undecided = {each.claim for each in controls if each.status is Status.NOT_RUN}
    wrong = [each for each in controls if each.status not in (Status.PASS, Status.NOT_RUN)]
    sources, planted = sources_of(planned), []
    for case in planned.cases:
        if case.unit.claim not in undecided:
            evidence = [evidence_of(name, sources[name], bundle, case.fault) for name in case.unit.runs]
            said = forked_runs.verdict_on(case.unit, contracts, evidence)
            killed = is_killed(case.expected, said)
            planted.append(Planted(case.unit.claim, case.fault, killed, said.reason, said.message))
    return Drilled([f"{each.claim}: {each.reason}: {each.message}" for each in wrong], planted)
