"""From a contract to evidence that reads back, through a real worker and the real paired probe."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import pytest
from run_builders import make_contract

from harness.contract.schema import Contract
from harness.contract.shared import SharedFile
from harness.devices.environment import Machine
from harness.evidence.environment_records import Environment
from harness.execution import worker
from harness.execution.supervisor import execute
from harness.planning.plan import plan
from harness.run_directory.bundle import Digests, Header, altered, read_bundle
from harness.run_directory.shards import attempts
from harness.run_directory.writer import BundleWriter
from harness.system.resolve import resolve

TRAJECTORY = {
    "id": "T",
    "kind": "trajectory_match",
    "candidate": "again",
    "baseline": "plain",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": 3},
}


@dataclass(frozen=True)
class Loaded:
    contract: Contract
    text: str = "id: c\n"
    digest: str = "0" * 64
    shared: tuple[SharedFile, ...] = ()


def test_a_planned_run_writes_the_series_of_every_repetition(tmp_path: Path) -> None:
    contract = make_contract(TRAJECTORY, system="step_function_systems:Regression", arms={"plain": {}, "again": {}})
    planned = plan(
        [Loaded(contract)],
        machine=Machine(False, "no GPU", (), 8.0),
        describe=lambda name: resolve(name).describe(),
    )
    header = Header(
        purpose="verify",
        started_at="2026-11-20T12:00:00Z",
        command=["test"],
        environment=Environment(),
        units=planned.units,
        runs={run.id: run.probe for run in planned.runs},
        digests=Digests(contracts={}, source="s"),
    )
    writer = BundleWriter(tmp_path / "run", header, [])
    for run in planned.runs:
        assert execute(run, writer.evidence_directory(run.id)) is None
    bundle = read_bundle(writer.finish())
    [attempt] = attempts([bundle], [contract])
    [evidence] = attempt.evidence
    assert list(evidence.arms) == ["again", "plain"]
    first, second = evidence.arms["plain"]
    [again] = evidence.arms["again"]
    assert len(again.series.loss) == 3
    assert again.series.loss[0] > again.series.loss[1:].min() > 0.0
    for other in (first, second):
        assert other.series.loss.tolist() == again.series.loss.tolist()
        assert other.series.batch_digest == again.series.batch_digest
        assert other.start.trainable_digest == again.start.trainable_digest
    assert len(set(again.series.batch_digest)) == 3
    assert altered(bundle) == []


def test_garbage_collection_is_enabled_again_after_a_failed_import() -> None:
    with pytest.raises(ModuleNotFoundError), worker._collector_off():
        assert not gc.isenabled()
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
