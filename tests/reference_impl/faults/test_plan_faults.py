"""Each fault of the kernel plan that shows without a GPU, through probe and judge, against the shipped claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from scaled_copy import scaled_copy_spec

from harness.contract.load import load_contracts
from harness.contract.schema import AnyClaim, Contract, parts_of
from harness.evidence.run_evidence import RunEvidence
from harness.execution.probes.kernels import evidence
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.kinds.kernels.model import Prewarm, PtxTarget
from reference_impl.config import TrainConfig
from reference_impl.faults import FAULTS, PLAN, plant
from reference_impl.kernel_cache import KernelCache, KeyCollisionError, PtxTargetError, named_target
from reference_impl.prewarm import RunKernels
from reference_impl.system import QLoRASystem

CONTRACTS = [one.contract for one in load_contracts([Path(__file__).parents[3] / "contracts"])]
CLAIMS: dict[str, tuple[Contract, AnyClaim]] = {
    claim.id: (contract, claim) for contract in CONTRACTS for claim in contract.claims
}
PLAN_FAULTS = {name: fault.description for name, fault in FAULTS.items() if fault.hook is PLAN}
SEEN_ANYWHERE = [
    pytest.param(name, claim, marks=pytest.mark.slow if claim == "PTX-TARGET-001" else ())
    for name, fault in PLAN_FAULTS.items()
    for claim in fault.breaks
    if claim in {"PREWARM-COVERAGE-001", "PTX-TARGET-001"}
]


def verdict(claim_id: str, fault: str | None) -> Verdict:
    """The claim judged on cross-compiled kernels with a fault planted in each of its arms."""
    contract, claim = CLAIMS[claim_id]
    (workload_name,) = claim.judged_on
    runs: list[RunEvidence] = []
    for part in parts_of(claim):
        assert isinstance(part, PtxTarget | Prewarm)
        arm = contract.arms[part.candidate]
        inventory = QLoRASystem().cross_compiled(contract.workloads[workload_name], arm, part.target, fault=fault)
        record = evidence(part.candidate, inventory, compiled_for=part.target, device=None)
        runs.append(RunEvidence(f"run {len(runs)}", "kernels", {}, kernels={part.candidate: record}))
    return judge_unit(contract, claim, workload_name, runs)


def test_the_claim_about_prewarmed_kernels_passes_without_a_fault() -> None:
    """PTX-TARGET-001 would compile a plan for four architectures; `make verify` does, and expects it to hold."""
    found = verdict("PREWARM-COVERAGE-001", None)
    assert (found.status, found.reason) == ("PASS", "held"), found.message


@pytest.mark.parametrize(("fault", "claim"), SEEN_ANYWHERE)
def test_a_planted_fault_breaks_its_claim_as_declared(fault: str, claim: str) -> None:
    expected = PLAN_FAULTS[fault].breaks[claim]
    found = verdict(claim, fault)
    assert (found.status, found.reason) == (expected.status, expected.reason), found.message
    figures = {name: found.figures[name].value for name in expected.figures}
    assert figures == dict(expected.figures)


def test_every_plan_fault_is_named_by_a_claim_that_it_breaks() -> None:
    for name, fault in PLAN_FAULTS.items():
        for claim in fault.breaks:
            assert name in CLAIMS[claim][1].falsified_by, (name, claim)


def test_only_plan_faults_of_kernel_loading_need_cuda() -> None:
    assert {name for name, fault in PLAN_FAULTS.items() if fault.needs == "cuda"} == {
        "late_jit",
        "cold_cublas",
    }


def run_kernels(fault: str) -> RunKernels:
    kernels = RunKernels(TrainConfig.preset("tiny", device="cpu"), (64,))
    plant(fault, PLAN, kernels)
    return kernels


def test_plan_faults_change_ptx_and_keys_of_cuda_kernels_like_those_of_triton() -> None:
    right, other = scaled_copy_spec(8, 32), scaled_copy_spec(8, 64)
    without = run_kernels("ptx_without_target")
    with pytest.raises(PtxTargetError, match=r"the PTX of clip\.scale_apply/8x32/.* has no \.target line"):
        KernelCache(named_target("sm_90"), without.key, without.ptx).load(replace(right, op="clip.scale_apply"))
    colliding = KernelCache(named_target("sm_90"), run_kernels("key_collision").key)
    colliding.load(right)
    with pytest.raises(KeyCollisionError, match="share the key scaled_copy@sm_90"):
        colliding.load(other)


def test_the_late_jit_fault_leaves_one_planned_kernel_out_of_the_prewarm() -> None:
    kernels = run_kernels("late_jit")
    prewarmed = kernels.to_prewarm()
    assert [spec.op for spec in kernels.plan() if spec not in prewarmed] == ["clip.scale_apply"]


def test_the_cold_cublas_fault_skips_warming_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[object] = []
    monkeypatch.setattr("reference_impl.prewarm.make_library_handles", warmed.append)
    monkeypatch.setattr(
        RunKernels, "_on_device", lambda _: SimpleNamespace(ledger=SimpleNamespace(handle=warmed.append))
    )
    monkeypatch.setattr("reference_impl.prewarm.rehearse", lambda *_: warmed.append("rehearsal"))
    run_kernels("late_jit").warm_libraries()
    assert warmed == [torch.device("cpu"), "cublas", "rehearsal"]
    run_kernels("cold_cublas").warm_libraries()
    assert len(warmed) == 3
