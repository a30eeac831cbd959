"""Planning: what the machine or the system lacks is an obstacle, with its reason, and nothing is run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from planning import (
    ARMS,
    CAPTURE,
    GRADIENTS,
    H200,
    MEMORY,
    NO_GPU,
    PTX,
    SYNCS,
    THROUGHPUT,
    TRAJECTORY,
    WORKLOADS,
    describe,
    planned,
)

from harness.devices.environment import Machine
from harness.errors import SystemResolutionError
from harness.platform.paths import command_for
from harness.system.protocol import CAPABILITIES, SystemDescription


def on(**needs: Any) -> dict[str, Any]:
    return {"w": {**WORKLOADS["small"], "needs": needs}}


@pytest.mark.parametrize(
    ("claim", "needs", "machine", "reason", "message"),
    [
        (CAPTURE, {"device": "cuda"}, NO_GPU, "needs_cuda", "needs CUDA: this machine has no CUDA device"),
        (
            {**CAPTURE, "mechanism": "cuda_graph"},
            {},
            NO_GPU,
            "needs_cuda",
            "needs CUDA: this machine has no CUDA device",
        ),
        ({**PTX, "target": "device"}, {}, NO_GPU, "needs_cuda", "needs CUDA: this machine has no CUDA device"),
        (
            CAPTURE,
            {"device": "cuda", "memory_gib": 200},
            H200,
            "needs_memory",
            "needs 200 GiB of GPU memory, but this machine has 139.8 GiB",
        ),
        (
            CAPTURE,
            {"gpu": ["H100", "A100"]},
            H200,
            "needs_gpu",
            "needs a GPU named H100 or A100, but this machine has NVIDIA H200",
        ),
        (
            CAPTURE,
            {"gpu": "h200", "capability_at_least": "10.0"},
            H200,
            "needs_gpu",
            "needs compute capability 10.0 or more, but NVIDIA H200 has 9.0",
        ),
        (CAPTURE, {"gpu": "H200"}, NO_GPU, "needs_cuda", "needs CUDA: this machine has no CUDA device"),
        (
            CAPTURE,
            {"memory_gib": 32},
            NO_GPU,
            "needs_memory",
            "needs 32 GiB of host memory, but this machine has 16.0 GiB",
        ),
        (
            CAPTURE,
            {"modules": ["json", "no_such_module"]},
            NO_GPU,
            "module_missing",
            "needs no_such_module, which is not installed here",
        ),
    ],
)
def test_on_a_machine_that_lacks_a_requirement_nothing_runs_and_the_reason_is_stated(
    claim: dict[str, Any], needs: dict[str, Any], machine: Machine, reason: str, message: str
) -> None:
    result = planned(claim, machine=machine, workloads_=on(**needs))
    [unit] = result.units
    assert unit.obstacle is not None
    assert (unit.obstacle.reason, unit.obstacle.message) == (reason, message)
    assert (unit.runs, result.runs) == ([], [])


def test_other_claims_run_if_one_claim_cannot_run() -> None:
    result = planned({**CAPTURE, "mechanism": "cuda_graph"}, TRAJECTORY)
    assert [unit.obstacle is None for unit in result.units] == [False, True]
    assert [run.id for run in result.runs] == ["c+w+paired"]


def test_on_a_machine_that_meets_all_requirements_every_unit_can_run() -> None:
    workloads = on(device="cuda", memory_gib=12, modules=["json"])
    result = planned({**CAPTURE, "mechanism": "cuda_graph"}, machine=H200, workloads_=workloads)
    assert result.units[0].obstacle is None


def test_without_the_run_extra_no_unit_can_run_because_of_a_missing_module() -> None:
    bare = replace(H200, has_module=lambda name: name not in {"torch", "pynvml"})
    result = planned(TRAJECTORY, machine=bare, workloads_=on(modules=["no_such_module"]))
    assert result.units[0].obstacle is not None
    assert (result.units[0].obstacle.reason, result.units[0].obstacle.message, result.runs) == (
        "module_missing",
        f"needs torch, pynvml, which are not installed here; `{command_for('run')}` installs everything that runs need",
        [],
    )


def test_a_system_without_process_groups_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    [unit] = planned(TRAJECTORY).units
    assert unit.obstacle is not None
    assert (unit.obstacle.reason, unit.obstacle.message) == (
        "not_available",
        "runs need Linux or macOS; recorded evidence can be judged on any system",
    )


def test_claims_about_ptx_run_on_an_unreadable_gpu_because_their_judge_reports_it() -> None:
    broken = replace(NO_GPU, gpu_unreadable=True)
    result = planned({**PTX, "target": "device"}, {**CAPTURE, "mechanism": "cuda_graph"}, machine=broken)
    assert [unit.obstacle is None for unit in result.units] == [True, False]


@pytest.mark.parametrize(("device", "runs"), [(None, False), ("cuda", False), ("cpu", True)])
def test_a_machine_with_a_broken_gpu_decides_nothing_on_its_cpu_unless_the_workload_names_the_cpu(
    device: str | None, runs: bool
) -> None:
    """Otherwise the gate could open on a runner whose GPU driver is broken."""
    broken = replace(NO_GPU, gpu_unreadable=True, cuda_message="the NVIDIA driver does not answer: cuInit gave 999")
    [unit] = planned(TRAJECTORY, machine=broken, workloads_=on(device=device)).units
    assert (unit.obstacle is None) == runs
    if unit.obstacle is not None:
        assert unit.obstacle.reason == "needs_cuda"
        assert unit.obstacle.message.endswith(": the NVIDIA driver does not answer: cuInit gave 999")


@pytest.mark.parametrize(
    ("claim", "missing"),
    [
        (TRAJECTORY, "inputs"),
        (TRAJECTORY, "parameters"),
        ({**TRAJECTORY, "guards": {"steps": 3, "clip_active_steps": 2}}, "gradient_norms"),
        (GRADIENTS, "gradients"),
        ({**GRADIENTS, "clipped_norm": {"at_most": 1.0, "relative_rounding": 1e-6}}, "gradient_norms"),
        (GRADIENTS, "inputs"),
        (CAPTURE, "capture"),
        (CAPTURE, "parameters"),
        (SYNCS, "inputs"),
        (MEMORY, "inputs"),
        (THROUGHPUT, "parameters"),
        (PTX, "kernels"),
        (
            {
                "id": "K",
                "kind": "kernel_match",
                "candidate": "graphed",
                "operations": ["clip"],
                "max_relative_error": {"float32": 1e-5},
            },
            "kernel_cases",
        ),
    ],
)
def test_a_capability_that_the_system_lacks_prevents_the_unit_from_running_and_is_named(
    claim: dict[str, Any], missing: str
) -> None:
    lacking = replace(describe(""), capabilities=frozenset(CAPABILITIES) - {missing})
    result = planned(claim, machine=H200, describe=lambda _system: lacking)
    [unit] = result.units
    assert unit.obstacle is not None
    assert unit.obstacle.reason == "capability_missing"
    said = f"arm graphed: system lacks the capability `{missing}` that {claim['kind']} needs"
    assert unit.obstacle.message == said


CLIPPED = {**TRAJECTORY, "guards": {"steps": 3, "clip_active_steps": 2}}
BASELINES = [
    (CLIPPED, "capability_missing"),
    ({**GRADIENTS, "clip_active_steps": 2}, "capability_missing"),
    ({**GRADIENTS, "clipped_norm": {"at_most": 1.0, "relative_rounding": 1e-6}}, None),
    (TRAJECTORY, None),
]


@pytest.mark.parametrize(("claim", "reason"), BASELINES)
def test_an_active_clip_guard_needs_gradient_norms_of_the_baseline(claim: dict[str, Any], reason: str | None) -> None:
    lacking = replace(describe(""), name="theirs", capabilities=frozenset(CAPABILITIES) - {"gradient_norms"})
    arms = {**ARMS, "plain": {"system": "their.system:Theirs"}}
    answers = {"their.system:Theirs": lacking}
    [unit] = planned(claim, arms=arms, describe=lambda name: answers.get(name, describe(""))).units
    assert (unit.obstacle.reason if unit.obstacle else None) == reason


UNTRACED = [
    (MEMORY, "needs_cuda"),
    (THROUGHPUT, "needs_cuda"),
    ({**THROUGHPUT, "candidate": "untrained"}, None),
    (CAPTURE, None),
    ({**CAPTURE, "kernels_per_layer_at_least": 1}, "needs_cuda"),
    ({**CAPTURE, "clipped_tensors_per_layer": 6}, "needs_cuda"),
]


@pytest.mark.parametrize(("claim", "reason"), UNTRACED)
def test_a_claim_that_a_traced_replay_cannot_decide_needs_cuda(claim: dict[str, Any], reason: str | None) -> None:
    unit = planned(TRAJECTORY, claim, machine=NO_GPU).units[1]
    assert (unit.obstacle.reason if unit.obstacle else None) == reason


def test_a_missing_capability_blocks_only_claims_that_name_the_arm() -> None:
    lacking = replace(describe(""), name="theirs", capabilities=frozenset(CAPABILITIES) - {"inputs"})
    arms = {**ARMS, "foreign": {"system": "their.system:Theirs"}}
    foreign = {**TRAJECTORY, "id": "X", "baseline": "foreign"}
    result = planned(
        TRAJECTORY, foreign, arms=arms, describe=lambda name: lacking if name == "their.system:Theirs" else describe("")
    )
    sound, costly = result.units
    assert (sound.obstacle, sound.runs) == (None, [result.runs[0].id])
    assert costly.obstacle is not None
    assert costly.obstacle.message.startswith("arm foreign: theirs lacks the capability `inputs`")
    assert "foreign" not in result.runs[0].arms


def test_a_capture_setting_unknown_to_the_system_prevents_the_unit_from_running() -> None:
    plain = replace(describe(""), captures=frozenset({"none"}))
    [unit] = planned(CAPTURE, describe=lambda _system: plain).units
    assert unit.obstacle is not None
    assert unit.obstacle.message == "arm graphed: system does not support `capture: step`"


def broken(system: str) -> SystemDescription:
    raise SystemResolutionError("a system is described", where=system, got="nothing")


def test_a_unit_whose_system_cannot_be_described_does_not_run_and_states_the_error() -> None:
    """A worker might be able to open the system, but the plan of the unit depends on the description."""
    result = planned(CAPTURE, describe=broken)
    assert result.runs == []
    assert result.units[0].obstacle is not None
    assert result.units[0].obstacle.reason == "system_not_described"
    assert result.units[0].obstacle.message == "some.system:System: a system is described; found nothing"


def test_planting_a_fault_in_an_undescribed_system_reports_the_description_error() -> None:
    with pytest.raises(SystemResolutionError, match="a system is described; found nothing"):
        planned(CAPTURE, describe=broken, fault="stale_batch")
