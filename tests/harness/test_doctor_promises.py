"""Without CUDA `harness doctor` promises exactly the units that `harness verify` then decides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from warm_start import path_of_commands
from wrong_adapters import RIGHT

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# A trainer of somebody's own, which offers only what its description says.
PARTIAL = """
from harness.system.protocol import SystemDescription


class Run:
    def __init__(self, inner, offered):
        self._inner = inner
        for name in offered:
            setattr(self, name, getattr(inner, name))

    def step(self, index):
        return self._inner.step(index)

    def facts(self):
        return self._inner.facts()

    def __enter__(self):
        self._inner.__enter__()
        return self

    def __exit__(self, *error):
        self._inner.__exit__(*error)


def offering(capabilities, methods):
    class System:
        def describe(self):
            captures = frozenset({"none", "step"})
            return SystemDescription("partial", "", (), {}, {}, frozenset(capabilities), captures=captures)

        def open(self, workload, arm, *, fault=None, data=None, model_directory=None):
            from right import System as Right

            return Run(Right().open(workload, arm), methods)

    return System


Bare = offering((), ())
WithGradients = offering(("gradients", "parameters"), ("gradients", "parameters", "frozen"))
WithCapture = offering(("capture",), ("capture_record",))
"""
TRAINED: dict[str, Any] = {"candidate": "captured", "baseline": "plain", "equality": "bitwise"}
TRAJECTORY = {"kind": "trajectory_match", **TRAINED, "max_abs_difference": 0.1, "guards": {"steps": 6}}
REPEATED = {"kind": "repeatability", "candidate": "plain", "runs": 2, "equality": "bitwise"}
GRADIENTS = {"kind": "gradient_match", **TRAINED, "steps": [0, 5]}
CAPTURE = {"kind": "capture", "candidate": "captured"}
MEMORY = {"kind": "memory_steady", "candidate": "captured", "after": 3, "growth_at_most": 0.01}
SYNCS = {
    "kind": "host_syncs",
    "candidate": {"arm": "captured", "exactly": 0},
    "control": {"arm": "plain", "exactly": 1},
}
CLAIMS: dict[str, dict[str, Any]] = {
    "trajectory": TRAJECTORY,
    "trajectory-clip": {**TRAJECTORY, "guards": {"steps": 6, "clip_active_steps": 3}},
    "trajectory-graph": {**TRAJECTORY, "mechanism": "cuda_graph"},
    "trajectory-traced": {**TRAJECTORY, "mechanism": "traced"},
    "repeatability": {**REPEATED, "max_abs_difference": 1e-4, "guards": {"steps": 6}},
    "gradients": GRADIENTS,
    "gradients-norm": {**GRADIENTS, "clipped_norm": {"at_most": 1.0, "relative_rounding": 1e-4}},
    "capture": CAPTURE,
    "capture-kernels": {**CAPTURE, "kernels_per_layer_at_least": 1},
    "capture-clip": {**CAPTURE, "clipped_tensors_per_layer": 4},
    "syncs": SYNCS,
    "syncs-traced": {**SYNCS, "mechanism": "traced"},
    "memory": {**MEMORY, "per": "replay"},
    "memory-recapture": {**MEMORY, "per": "recapture"},
    "throughput": {
        "kind": "throughput_ratio",
        "candidate": "captured",
        "baseline": "plain",
        "at_least": 0.01,
        "processes": 7,
        "blocks": 8,
        "block_steps": 20,
        "trajectory": "trajectory",
    },
    "ptx": {"kind": "ptx_target", "candidate": "plain", "policy": "exact", "target": "sm_90"},
    "prewarm": {"kind": "prewarm", "candidate": "plain", "scope": "coverage", "target": "sm_90"},
    "kernels": {
        "kind": "kernel_match",
        "candidate": "plain",
        "operations": ["a"],
        "max_relative_error": {"float32": 1e-3},
    },
}
SYSTEMS = {
    "whole": "right:System",
    "bare": "partial:Bare",
    "gradients": "partial:WithGradients",
    "capture": "partial:WithCapture",
}
REFERENCE = ("trajectory", "gradients", "capture", "capture-kernels", "memory", "throughput", "trajectory-graph")


def contract(name: str, system: str, claims: dict[str, dict[str, Any]], model: str = "any") -> dict[str, Any]:
    texts = {"title": "t", "judged_on": ["w"], "why": "w", "if_fails": "f", "falsified_by": ["missing_run"]}
    return {
        "schema": "contract/v2",
        "id": name,
        "title": name,
        "system": system,
        "workloads": {"w": {"model": model, "batch_size": 2, "seq_len": 16, "steps": 6}},
        "arms": {"captured": {"capture": "step"}, "plain": {"capture": "none"}},
        "claims": [{"id": id_, **claim, **texts} for id_, claim in claims.items()],
    }


def harness(project: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "harness", *arguments, "--json"]
    environment = {**os.environ, "PYTHONPATH": path_of_commands(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def units(warm: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[bool, str, str]]]:
    """By contract and claim: what doctor promises, and status and reason of verify."""
    project = tmp_path_factory.mktemp("project")
    (project / "right.py").write_text(RIGHT)
    (project / "partial.py").write_text(PARTIAL)
    (project / "contracts").mkdir()
    contracts = [contract(name, system, CLAIMS) for name, system in SYSTEMS.items()]
    of_reference = {name: CLAIMS[name] for name in REFERENCE}
    contracts.append(contract("reference", "reference_impl.system:QLoRASystem", of_reference, "tiny"))
    for each in contracts:
        (project / "contracts" / f"{each['id']}.yaml").write_text(json.dumps(each))
    promised = {
        (unit["contract"], unit["claim"]): bool(unit["decidable"])
        for unit in harness(project, "doctor", "contracts")["units"]
    }
    found: dict[str, dict[str, tuple[bool, str, str]]] = {}
    for verdict in harness(project, "verify", "contracts")["claims"]:
        key = (verdict["contract"], verdict["claim"])
        found.setdefault(key[0], {})[key[1]] = (promised[key], verdict["status"], verdict["reason"])
    return found


@pytest.mark.parametrize("name", [*SYSTEMS, "reference"])
def test_doctor_predicts_what_verify_decides(units: dict[str, dict[str, tuple[bool, str, str]]], name: str) -> None:
    decided = ("PASS", "FAIL", "INCONCLUSIVE")
    broken = {
        claim: each for claim, each in units[name].items() if each[0] != (each[1] in decided) or each[1] == "ERROR"
    }
    assert broken == {}


def test_doctor_lists_decidable_and_undecidable_units(
    units: dict[str, dict[str, tuple[bool, str, str]]],
) -> None:
    promised = {name: sum(each[0] for each in claims.values()) for name, claims in units.items()}
    assert promised == {"whole": 7, "bare": 0, "gradients": 0, "capture": 0, "reference": 3}
