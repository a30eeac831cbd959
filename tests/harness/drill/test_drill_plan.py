"""Which faults are drilled, on which workload, in which run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from run_builders import make_contract

from harness.contract.schema import Contract, Workload
from harness.devices.cuda_driver import Gpu
from harness.devices.environment import Machine
from harness.drill.plan import DrillPlan, plan_drill, size_of
from harness.errors import ContractError, UsageError
from harness.system.protocol import CAPABILITIES, Expectation, FaultDescription, SystemDescription

NO_GPU = Machine(False, "this machine has no CUDA device", (), 16.0)
H200 = Machine(True, "", (Gpu("NVIDIA H200", "GPU-0", "sm_90", 139.8),), 128.0)

BREAKS = {"trajectory_match": Expectation("FAIL", "differs")}
FAULTS = {
    "one": FaultDescription("one", "s", "candidate", BREAKS),
    "both": FaultDescription("both", "s", "both", BREAKS),
    "gpu_only": FaultDescription("gpu_only", "s", "candidate", BREAKS, "cuda"),
    "other_kind": FaultDescription("other_kind", "s", "candidate", {"prewarm": Expectation("FAIL", "late_jit")}),
}
CPU = {"model": "m", "batch_size": 2, "seq_len": 8, "steps": 10, "needs": {"device": "cpu"}}
CUDA = {**CPU, "needs": {"device": "cuda"}}
BIG = {**CUDA, "steps": 1, "needs": {"device": "cuda", "memory_gib": 2}}
LONG = {**CPU, "steps": 1000}
TRAJECTORY = {
    "kind": "trajectory_match",
    "candidate": "graphed",
    "baseline": "plain",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": 1},
}


@dataclass(frozen=True)
class Loaded:
    contract: Contract
    path: Path = Path("c.yaml")


def describe(_system: str) -> SystemDescription:
    captures = frozenset({"none", "step"})
    return SystemDescription("s", "", [], {}, {}, frozenset(CAPABILITIES), captures=captures, faults=FAULTS)


def planned(*faults: str, on: dict[str, Any] | None = None, machine: Machine = NO_GPU, **options: Any) -> DrillPlan:
    """The plan of one trajectory claim over the workloads `on`."""
    workloads = on or {"w": CPU}
    contract = make_contract({**TRAJECTORY, "id": "T", "falsified_by": list(faults)}, workloads=workloads)
    return plan_drill([cast("Any", Loaded(contract))], machine=machine, describe=describe, **options)


def rows(plan: DrillPlan) -> list[tuple[str, str]]:
    return [(case.fault, case.unit.workload) for case in plan.cases]


def test_a_drill_plans_a_row_for_every_fault_and_one_control_run() -> None:
    plan = planned("one", "both", "nan_tail")
    assert rows(plan) == [("one", "w"), ("both", "w"), ("nan_tail", "w")]
    assert [run.id for run in plan.controls.runs] == ["c+w+paired"]
    assert list(plan.faulted) == ["c+w+paired+one", "c+w+paired+both", "c+w+paired+nan_tail"]


def test_unfaulted_arms_are_taken_from_the_control_run() -> None:
    plan = planned("one", "both")
    one, both = plan.faulted.values()
    assert one.executed is not None
    assert list(one.executed.arms) == ["graphed"]
    assert one.donor == "c+w+paired"
    assert both.executed is both.planned
    assert both.donor is None


def test_a_fault_planted_in_evidence_executes_no_run() -> None:
    plan = planned("no_steps", "missing_run")
    assert [each.executed for each in plan.faulted.values()] == [None, None]
    assert plan.faulted["c+w+paired+no_steps"].donor == "c+w+paired"


def test_a_drill_uses_the_smallest_workload_that_the_machine_can_run() -> None:
    on = {"big": BIG, "long": LONG, "cuda": CUDA, "cpu": CPU}
    assert rows(planned("one", on=on)) == [("one", "cpu")]
    assert rows(planned("one", on=on, machine=H200)) == [("one", "cuda")]
    assert rows(planned("one", on={"big": BIG, "long": LONG}, machine=H200)) == [("one", "long")]
    assert rows(planned("one", on={"big": BIG}, machine=H200)) == [("one", "big")]


def test_a_fault_that_needs_a_gpu_is_planned_on_a_cuda_workload() -> None:
    on = {"cpu": CPU, "long_cuda": {**CUDA, "steps": 500}}
    assert rows(planned("one", "gpu_only", on=on, machine=H200)) == [("one", "cpu"), ("gpu_only", "long_cuda")]


def test_a_fault_that_cannot_run_on_this_machine_is_listed_with_its_reason() -> None:
    plan = planned("one", on={"cuda": CUDA})
    assert plan.cases == []
    assert plan.controls.runs == []
    assert [(each.fault, each.reason) for each in plan.not_run] == [("one", "needs_cuda")]
    assert [each.message for each in planned("gpu_only").not_run] == [
        "the fault needs CUDA: this machine has no CUDA device"
    ]


def test_claims_with_equally_faulted_arms_share_a_drill_run() -> None:
    claims: list[dict[str, Any]] = [
        {**TRAJECTORY, "id": "A", "falsified_by": ["one"]},
        {**TRAJECTORY, "id": "B", "falsified_by": ["one"], "max_abs_difference": 0.5},
        {**TRAJECTORY, "id": "C", "falsified_by": ["one"], "candidate": "plain", "baseline": "untrained"},
    ]
    contract = make_contract(*claims, workloads={"w": CPU})
    plan = plan_drill([cast("Any", Loaded(contract))], machine=NO_GPU, describe=describe)
    assert {case.unit.claim: case.unit.runs for case in plan.cases} == {
        "A": ["c+w+paired+one"],
        "B": ["c+w+paired+one"],
        "C": ["c+w+paired+one+1"],
    }
    assert [each.planned.fault_arms for each in plan.faulted.values()] == [["graphed"], ["plain"]]


def test_a_drill_plans_only_the_requested_faults() -> None:
    assert rows(planned("one", "both", faults=["both"])) == [("both", "w")]
    with pytest.raises(UsageError, match=r"no selected claim names this fault; found `xyz`; known: both, one"):
        planned("one", "both", faults=["xyz"])


def test_a_drill_refuses_a_fault_that_only_claims_outside_its_selection_name() -> None:
    claims = [{**TRAJECTORY, "id": name, "falsified_by": [fault]} for name, fault in [("A", "one"), ("B", "both")]]
    contract = cast("Any", Loaded(make_contract(*claims, workloads={"w": CPU})))
    with pytest.raises(UsageError, match=r"no selected claim names this fault; found `both`; known: one"):
        plan_drill([contract], claims=["A"], faults=["both"], machine=NO_GPU, describe=describe)


@pytest.mark.parametrize("fault", ["other_kind", "unheard_of"])
def test_a_fault_that_declares_no_verdict_for_the_claim_is_an_error_of_the_contract(fault: str) -> None:
    with pytest.raises(ContractError, match=f"c.yaml: claim T: .* found `{fault}`"):
        planned(fault)


def test_workloads_are_ordered_by_memory_then_by_tokens() -> None:
    def size(**fields: Any) -> tuple[float, float, bool]:
        return size_of(Workload.model_validate({**CPU, **fields}))

    assert size() == (0.0, 160.0, True)
    assert size(seq_len=[8, 16]) == (0.0, 240.0, True)
    assert size(needs={"device": "cuda", "memory_gib": 2}) == (2.0, 160.0, False)
