"""Write a run directory with any number of steps, without training, to time the judge.

The two arms have equal results, and the baseline is repeated once.
"""

from __future__ import annotations

from pathlib import Path

from harness.contract.load import LoadedContract, load_contracts
from harness.contract.schema import Contract
from harness.evidence import layout
from harness.evidence.arm_records import ArmEnd, ArmStart, State
from harness.evidence.environment_records import Environment
from harness.evidence.plan_records import PlannedArm, Run, Unit
from harness.evidence.run_records import Complete
from harness.execution.recorder import Recorder, StepRows
from harness.numbers import dump_json
from harness.run_directory.bundle import Digests, Header, contract_digests
from harness.run_directory.writer import BundleWriter

CLAIM = "COST-001"
WORKLOAD = "long"
RUN_ID = "synthetic"
BLOCK = 10_000
_CONTRACT = """\
schema: contract/v1
id: cost-v1
title: A long trajectory
system: reference_impl.system:QLoRASystem
workloads:
  {workload}: {{model: tiny, batch_size: 4, seq_len: 64, steps: {steps}, needs: {{device: cpu}}}}
arms:
  candidate: {{capture: none}}
  baseline: {{capture: none}}
claims:
  - id: {claim}
    title: Two equal series agree
    kind: trajectory_match
    candidate: candidate
    baseline: baseline
    equality: bitwise
    max_abs_difference: 0.1
    guards: {{steps: {steps}, distinct_batches: {steps}}}
    on: [{workload}]
    why: It times the judge.
    if_fails: The series are written equal, so the judge is wrong.
"""


def write_run_directory(folder: Path, steps: int) -> tuple[Contract, Path]:
    """Write a complete run directory with ``steps`` steps for each arm. Return its contract and its path."""
    path = folder / "cost-v1.yaml"
    path.write_text(_CONTRACT.format(workload=WORKLOAD, steps=steps, claim=CLAIM))
    loaded = load_contracts([path])
    contract = loaded[0].contract
    writer = BundleWriter(folder / "run", _header(contract, loaded), loaded)
    _write_evidence(contract, writer.evidence_directory(RUN_ID), steps)
    return contract, writer.finish()


def _header(contract: Contract, loaded: list[LoadedContract]) -> Header:
    unit = Unit(contract=contract.id, claim=CLAIM, workload=WORKLOAD, runs=[RUN_ID])
    return Header(
        purpose="verify",
        started_at="2026-01-01T00:00:00+00:00",
        command=["synthetic"],
        environment=Environment(),
        units=[unit],
        runs={RUN_ID: "paired"},
        digests=Digests(contracts=contract_digests(loaded), source="synthetic"),
    )


def _write_evidence(contract: Contract, directory: Path, steps: int) -> None:
    directory.mkdir(parents=True)
    arms = {
        name: PlannedArm(arm=arm, system=contract.system, replicas=2 if name == "baseline" else 1)
        for name, arm in contract.arms.items()
    }
    run = Run(
        id=RUN_ID,
        contract=contract.id,
        probe="paired",
        workload_name=WORKLOAD,
        workload=contract.workloads[WORKLOAD],
        arms=arms,
    )
    (directory / layout.RUN).write_text(dump_json(run.model_dump(), indent=2, sort_keys=False) + "\n")
    with Recorder(directory) as recorder:
        for name, planned in arms.items():
            for replica in range(planned.replicas):
                _write_arm(recorder, name, replica, steps)
        recorder.write(Complete(seconds=1.0))


def _write_arm(recorder: Recorder, arm: str, replica: int, steps: int) -> None:
    recorder.write(
        ArmStart(
            arm=arm,
            replica=replica,
            trainable_digest="start",
            frozen_digest="f",
            trainable_tensors=1,
            facts={},
            state=_state("start"),
        )
    )
    for first in range(0, steps, BLOCK):
        indices = range(first, min(first + BLOCK, steps))
        losses = [12.0 / (1 + index * 1e-5) for index in indices]
        digests = [f"{index:016x}" for index in indices]
        recorder.series(arm, replica).rows(StepRows(indices, losses, digests, [4] * len(indices), [256] * len(indices)))
    recorder.write(
        ArmEnd(
            arm=arm,
            replica=replica,
            trainable_digest="end",
            frozen_digest="f",
            skipped_steps=0,
            steps_called=steps,
            state=_state("end"),
        )
    )


def _state(parameter: str) -> State:
    return State(digests={"parameters": {"p": parameter}, "generators": {"torch.cpu": "g"}}, tensors=2)
