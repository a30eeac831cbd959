"""A detector or recorder that raises costs the claims that read what it sees; the others of its run are decided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_builders import make_contract

from harness.contract.schema import Contract
from harness.devices.environment import Machine
from harness.evidence.read_run import read_run
from harness.execution.probes import paired
from harness.execution.recorder import Recorder
from harness.execution.watchers import capture_watch, gradient_reader, host_sync
from harness.execution.watchers.gradient_reader import MicroBatchWatch
from harness.execution.watchers.host_sync import SeriesWatch
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.numbers import dump_json
from harness.planning.plan import plan
from harness.system.protocol import NotAvailable
from harness.system.resolve import resolve

STEPS = 4
GUARDS = {"steps": STEPS, "distinct_batches": STEPS}
BITWISE = {"equality": "bitwise", "max_abs_difference": 0.1}
OF_PARTS = {"system": "accumulating_systems:Accumulating"}
ARMS: dict[str, dict[str, Any]] = {
    "captured": {"capture": "step"},
    "plain": {},
    "waiting": {"system": "step_function_systems:Waits"},
    "parts": {**OF_PARTS, "micro_batches": 4},
    "one-batch": OF_PARTS,
}
CLAIMS: list[dict[str, Any]] = [
    {"id": "REPEATS", "kind": "repeatability", "candidate": "plain", **BITWISE, "guards": GUARDS},
    {"id": "CAPTURES", "kind": "capture", "candidate": "captured"},
    {"id": "SAME", "kind": "trajectory_match", "candidate": "captured", "baseline": "plain", **BITWISE,
     "guards": GUARDS},
    {"id": "GRADIENTS", "kind": "gradient_match", "candidate": "waiting", "baseline": "plain", "steps": [0, 3],
     "equality": "bitwise"},
    {"id": "SYNCS", "kind": "host_syncs", "candidate": {"arm": "plain", "exactly": 0},
     "control": {"arm": "waiting", "exactly": 5}},
    {"id": "PARTS", "kind": "accumulation", "candidate": "parts", "baseline": "one-batch", "micro_batches": 4,
     "steps": [0, 1], "max_relative_difference": 1e-3},
]  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    contract: Contract


def verdicts(directory: Path) -> dict[str, Verdict]:
    """Of every claim over one paired run, executed here."""
    workload = {"model": "any", "batch_size": 4, "seq_len": 4, "steps": STEPS}
    system = "step_function_systems:Regression"
    contract = make_contract(*CLAIMS, arms=ARMS, system=system, workloads={"w": workload})
    machine = Machine(False, "no GPU", (), 8.0)
    [run] = plan([Loaded(contract)], machine=machine, describe=lambda name: resolve(name).describe()).runs
    directory.mkdir()
    (directory / "run.json").write_text(dump_json(run.model_dump(), sort_keys=False))
    with Recorder(directory) as recorder:
        paired.execute(run, recorder)
        recorder.complete()
    _, evidence = read_run(directory)
    assert not evidence.failed
    return {claim.id: judge_unit(contract, claim, "w", [evidence]) for claim in contract.claims}


def fail(*_arguments: object, **_keywords: object) -> Any:
    raise RuntimeError("a defect of a detector")


def exclude(*_arguments: object, **_keywords: object) -> Any:
    raise NotAvailable("no such counter here")


# What raises -> the claims that read what it sees, and what their sentences name.
PLANTED: dict[str, tuple[object, str, set[str], str]] = {
    "gradients": (gradient_reader, "reduce_gradients", {"GRADIENTS", "PARTS"}, "gradients of arm"),
    "the census": (capture_watch, "_moved", {"CAPTURES", "SAME"}, "capture of arm captured"),
    "the watch over steps, at its beginning": (SeriesWatch, "step", {"CAPTURES", "SAME"}, "capture of arm captured"),
    "the watch over steps, behind each": (SeriesWatch, "_keep", {"CAPTURES", "SAME"}, "capture of arm captured"),
    "the dispatch mode": (host_sync, "by_dispatch_mode", {"SYNCS"}, "under the detector dispatch_mode"),
    "the fake pass": (host_sync, "by_fake_pass", {"SYNCS"}, "under the detector fake_pass"),
    "places of syncs": (host_sync, "places_of", {"SYNCS"}, "syncs of arm plain"),
    "micro-batches, before": (MicroBatchWatch, "__init__", {"PARTS"}, "micro_batches of arm parts"),
    "micro-batches, at each step": (MicroBatchWatch, "add", {"PARTS"}, "micro_batches of arm parts"),
    "micro-batches, at the end": (MicroBatchWatch, "write", {"PARTS"}, "micro_batches of arm parts"),
    "memory": (paired, "_sample_memory", set(), ""),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_raising_detector_fails_only_the_claims_that_read_its_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    owner, name, costs, named = PLANTED[what]
    monkeypatch.setattr(owner, name, fail)
    found = verdicts(tmp_path / "run")
    assert {claim for claim, verdict in found.items() if str(verdict.status) == "ERROR"} == costs
    for claim in costs:
        assert found[claim].reason == "worker_exception"
        assert named in found[claim].message
        assert "a defect of a detector" in found[claim].message
    assert {verdict.reason for claim, verdict in found.items() if claim not in costs} == {"held"}


def test_without_a_defective_detector_every_claim_passes(tmp_path: Path) -> None:
    assert {claim: verdict.reason for claim, verdict in verdicts(tmp_path / "run").items()} == {
        claim["id"]: "held" for claim in CLAIMS
    }


def test_a_detector_unavailable_on_this_machine_leaves_its_claims_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_reader, "reduce_gradients", exclude)
    found = verdicts(tmp_path / "run")
    assert {claim for claim, verdict in found.items() if str(verdict.status) == "NOT_RUN"} == {"GRADIENTS", "PARTS"}
    assert "no such counter here" in found["GRADIENTS"].message
