"""Claims of every kind, a system with all capabilities, and the plan of a contract of these claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from run_builders import make_contract

from harness.contract.schema import Contract
from harness.devices.cuda_driver import Gpu
from harness.devices.environment import Machine
from harness.planning.plan import Plan, plan
from harness.system.protocol import CAPABILITIES, SystemDescription

NO_GPU = Machine(False, "this machine has no CUDA device", (), 16.0)
H200 = Machine(True, "", (Gpu("NVIDIA H200", "GPU-0", "sm_90", 139.8),), 128.0)
GUARDS = {"steps": 3}
TRAJECTORY = {
    "id": "T",
    "kind": "trajectory_match",
    "candidate": "graphed",
    "baseline": "plain",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {**GUARDS, "training_effect": {"control": "untrained", "last": 1, "at_least": 0.1}},
}
GRADIENTS = {
    "id": "G",
    "kind": "gradient_match",
    "candidate": "graphed",
    "baseline": "plain",
    "steps": [2, 0],
    "equality": "bitwise",
}
CAPTURE = {"id": "C", "kind": "capture", "candidate": "graphed"}
SYNCS = {
    "id": "S",
    "kind": "host_syncs",
    "candidate": {"arm": "graphed", "exactly": 0},
    "control": {"arm": "synchronizing", "exactly": 6, "per_layer": True},
}
THROUGHPUT = {
    "id": "F",
    "kind": "throughput_ratio",
    "candidate": "graphed",
    "baseline": "plain",
    "at_least": 1.1,
    "processes": 6,
    "blocks": 4,
    "block_steps": 5,
    "trajectory": "T",
}
MEMORY = {
    "id": "M",
    "kind": "memory_steady",
    "candidate": "graphed",
    "per": "replay",
    "after": 1,
    "growth_at_most": 0.1,
}
PTX = {"id": "P", "kind": "ptx_target", "candidate": "graphed", "policy": "exact", "target": "sm_90"}
ARMS = {
    "untrained": {"learning_rate": 0},
    "graphed": {"capture": "step"},
    "plain": {},
    "synchronizing": {"clip": "synchronizing"},
}


@dataclass(frozen=True)
class Loaded:
    contract: Contract


def describe(_system: str) -> SystemDescription:
    return SystemDescription(
        "system", "", [], {}, {}, frozenset(CAPABILITIES), captures=frozenset({"none", "step", "backward"})
    )


def planned(*claims: dict[str, Any], machine: Machine = NO_GPU, **options: Any) -> Plan:
    fields = {name: options.pop(name) for name in ("workloads_", "arms") if name in options}
    contract = make_contract(*claims, arms=fields.get("arms", ARMS), workloads=fields.get("workloads_"))
    return plan([Loaded(contract)], machine=machine, describe=options.pop("describe", describe), **options)


WORKLOADS = {
    "small": {"model": "m", "batch_size": 4, "seq_len": 16, "steps": 3},
    "large": {"model": "m", "batch_size": 8, "seq_len": [16, 32], "steps": 3},
}
