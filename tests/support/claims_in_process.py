"""Plan, execute and judge a claim in this process: the result of `harness verify` without its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planning import NO_GPU

from harness.contract.schema import Contract
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import RunEvidence
from harness.execution.recorder import Recorder
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.kinds import imported, probe_named
from harness.numbers import dump_json
from harness.planning.plan import Plan, plan
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

STEPS = 12
CLAIM: dict[str, Any] = {
    "id": "CLAIM",
    "title": "t",
    "why": "w",
    "if_fails": "f",
    "judged_on": ["w"],
    "kind": "trajectory_match",
    "candidate": "captured",
    "baseline": "plain",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": STEPS, "distinct_batches": STEPS},
}
# With a third arm to train, which most tests have no use for.
WITH_CONTROL: dict[str, Any] = {
    "guards": CLAIM["guards"] | {"training_effect": {"control": "untrained", "last": 4, "at_least": 0.1}}
}


@dataclass(frozen=True)
class Loaded:
    contract: Contract


ARMS: dict[str, dict[str, Any]] = {
    "captured": {"capture": "step"},
    "plain": {"capture": "none"},
    "untrained": {"capture": "none", "learning_rate": 0.0},
}


def contract_of(
    system: str,
    claim: Mapping[str, Any],
    seed: int = 0,
    steps: int = STEPS,
    arms: Mapping[str, Mapping[str, Any]] = ARMS,
    *,
    beside: Sequence[Mapping[str, Any]] = (),
) -> Contract:
    """Return a contract with a claim over arms of one system, and an arm `again` that names the system itself.

    beside: more claims, which get ids of their own.
    """
    return Contract.model_validate(
        {
            "schema": "contract/v2",
            "id": "c",
            "title": "t",
            "system": system,
            "workloads": {"w": {"model": "any", "batch_size": 4, "seq_len": 4, "steps": steps, "seed": seed}},
            "arms": {**arms, "again": {"capture": "none", "system": system}},
            "claims": [dict(claim), *({**each, "id": f"BESIDE-{number}"} for number, each in enumerate(beside))],
        }
    )


def planned_of(contract: Contract, fault: str | None = None) -> Plan:
    """Return the plan of a contract on a machine without a GPU."""
    return plan(
        [Loaded(contract)],
        fault=fault,
        machine=NO_GPU,
        describe=lambda name: resolve(name).describe(),
        harness_faults=HARNESS_FAULTS,
    )


def executed(run: Run, directory: Path) -> RunEvidence:
    """Execute a run's probe in `directory` and return its evidence as it is read from there."""
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(dump_json(run.model_dump(), sort_keys=False))
    with Recorder(directory) as recorder:
        imported(probe_named(run.probe).execute)(run, recorder)
        recorder.complete()
    return read_run(directory)[1]


def verdict_on(
    system: str, directory: Path, *, fault: str | None = None, seed: int = 0, steps: int = STEPS, **claim: Any
) -> Verdict:
    """Return the verdict on `CLAIM`, with changes, for a system in a test's support folder."""
    return judged(system, directory, CLAIM | claim, fault=fault, seed=seed, steps=steps)


def judged(
    system: str,
    directory: Path,
    claim: Mapping[str, Any],
    *,
    fault: str | None = None,
    seed: int = 0,
    steps: int = STEPS,
    arms: Mapping[str, Mapping[str, Any]] = ARMS,
) -> Verdict:
    """Return the verdict on any claim."""
    return judged_on(contract_of(system, claim, seed, steps, arms), directory, fault)[0]


def judged_on(contract: Contract, directory: Path, fault: str | None = None) -> list[Verdict]:
    """Return the verdicts on all claims of a contract. Runs that differ only in their ids are executed once."""
    planned = planned_of(contract, fault)
    evidence: dict[str, RunEvidence] = {}
    for run in planned.runs:
        alike = (each for each in planned.runs if each.model_copy(update={"id": run.id}) == run)
        host = next(alike).id
        evidence[run.id] = evidence[host] if host in evidence else executed(run, directory / run.id)
    return [
        judge_unit(contract, claim, "w", [evidence[run] for run in unit.runs], unit.obstacle)
        for claim, unit in zip(contract.claims, planned.units, strict=True)
    ]
