"""What a contract demands to be run: today's plan is it for every unit, each changed setting of a probe is not."""

from __future__ import annotations

from typing import Any

import pytest
from planning import ARMS, CAPTURE, GRADIENTS, H200, PTX, SYNCS, THROUGHPUT, TRAJECTORY, WORKLOADS, planned
from run_builders import make_contract

from harness.contract.schema import AnyClaim, Arm, Contract
from harness.evidence.plan_records import Run
from harness.planning.run_builder import first_difference

COVERAGE = {"id": "V", "kind": "prewarm", "candidate": "graphed", "scope": "coverage", "target": "sm_90"}
PREWARM = {"id": "W", "kind": "prewarm", "candidate": "graphed", "scope": "device", "handles": ["cublas"]}
KERNELS = {
    "id": "K",
    "kind": "kernel_match",
    "candidate": "graphed",
    "operations": ["clip"],
    "max_relative_error": {"float32": 1e-5},
}
OTHER_KERNELS = {**KERNELS, "id": "L", "operations": ["gemm"]}
MEMORY = {
    "id": "M",
    "kind": "memory_steady",
    "candidate": "graphed",
    "per": "recapture",
    "after": 2,
    "growth_at_most": 0.1,
}
REPEATED = {
    "id": "R",
    "kind": "repeatability",
    "candidate": "plain",
    "runs": 3,
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": 3},
}
ACCUMULATION = {
    "id": "A",
    "kind": "accumulation",
    "candidate": "graphed",
    "baseline": "plain",
    "micro_batches": 2,
    "steps": [0],
    "max_relative_difference": 0.1,
}
OTHER_MICRO_BATCHES = {**ACCUMULATION, "id": "B", "micro_batches": 4}
WITHIN = {key: value for key, value in TRAJECTORY.items() if key != "id"} | {"equality": "within"}
DTYPES = {**WITHIN, "id": "D", "parameter_dtypes": {"candidate": "bfloat16", "baseline": "float32"}}
NEAR = {**WITHIN, "id": "N", "ends": {"control": "synchronizing", "at_most": 0.01}}
OTHER_BASELINE = {**GRADIENTS, "id": "H", "baseline": "untrained", "steps": [1]}
PARTS: dict[str, Any] = {
    "id": "Z",
    "kind": "composite",
    "parts": [{key: claim[key] for key in claim if key != "id"} for claim in (TRAJECTORY, GRADIENTS, PTX, KERNELS)],
}
EVERYTHING: list[dict[str, Any]] = [
    TRAJECTORY,
    GRADIENTS,
    OTHER_BASELINE,
    CAPTURE,
    SYNCS,
    THROUGHPUT,
    PTX,
    COVERAGE,
    PREWARM,
    KERNELS,
    OTHER_KERNELS,
    MEMORY,
    REPEATED,
    ACCUMULATION,
    OTHER_MICRO_BATCHES,
    DTYPES,
    NEAR,
    PARTS,
]


def units(*claims: dict[str, Any]) -> list[tuple[Contract, AnyClaim, str, list[Run]]]:
    """Every unit of the claims' plan with the runs that decide it, shared as the plan shares them."""
    contract = make_contract(*claims, arms=ARMS, workloads=WORKLOADS)
    plan = planned(*claims, machine=H200, workloads_=WORKLOADS)
    runs = {run.id: run for run in plan.runs}
    by_name = {claim.id: claim for claim in contract.claims}
    return [(contract, by_name[unit.claim], unit.workload, [runs[name] for name in unit.runs]) for unit in plan.units]


def test_the_plan_contains_exactly_the_runs_that_the_contract_demands() -> None:
    found = units(*EVERYTHING)
    assert len(found) == 2 * len(EVERYTHING)
    assert [(claim.id, first_difference(*unit)) for unit in found if (claim := unit[1])] == [
        (claim["id"], None) for claim in EVERYTHING for _ in WORKLOADS
    ]


CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (THROUGHPUT, {"blocks": 6}, "settings.blocks: 6 in the contract, 4 in the evidence"),
    (THROUGHPUT, {"block_steps": 6}, "settings.block_steps: 6 in the contract, 5 in the evidence"),
    (THROUGHPUT, {"processes": 7}, "process: 6 in the contract, 0 in the evidence"),
    (THROUGHPUT, {"measurements": 2}, "process: 6 in the contract, 0 in the evidence"),
    (
        THROUGHPUT,
        {"processes": 5},
        "run c+large+throughput+F+0+5: none in the contract, a throughput run in",
    ),
    (THROUGHPUT, {"baseline": "untrained"}, "arms.untrained: an arm in the contract, none in the evidence"),
    (GRADIENTS, {"steps": [1]}, "gradient_steps: [1] in the contract, [0, 2] in the evidence"),
    (GRADIENTS, {"baseline": "untrained"}, "arms.untrained: an arm in the contract, none in the evidence"),
    (CAPTURE, {"candidate": "plain"}, "arms.plain: an arm in the contract, none in the evidence"),
    (SYNCS, {"control": {"arm": "plain", "exactly": 1}}, "arms.plain: an arm in the contract, none in the evidence"),
    (PTX, {"target": "sm_80"}, "settings.target: 'sm_80' in the contract, 'sm_90' in the evidence"),
    (COVERAGE, {"target": "sm_80"}, "settings.target: 'sm_80' in the contract, 'sm_90' in the evidence"),
    (PREWARM, {"handles": []}, "settings.handles: [] in the contract, ['cublas'] in the evidence"),
    (PREWARM, {"memory_filled": True}, "settings.memory_filled: True in the contract, False in the evidence"),
    (KERNELS, {"operations": ["gemm"]}, "settings.operations: ['gemm'] in the contract, ['clip'] in the evidence"),
    (KERNELS, {"magnitudes": [3.0]}, "settings.magnitudes: [3.0] in the contract, "),
    (
        KERNELS,
        {"max_relative_error": {"float16": 1e-2}},
        "settings.max_relative_error: ['float16'] in the contract, ['float32'] in the evidence",
    ),
    (MEMORY, {"after": 3}, "settings.after: 3 in the contract, 2 in the evidence"),
    (ACCUMULATION, {"micro_batches": 4}, "arms.graphed.micro_batches: 4 in the contract, 2 in the evidence"),
    (
        DTYPES,
        {"parameter_dtypes": {"candidate": "float16", "baseline": "float32"}},
        "arms.plain.rounded_to: 'float16' in the contract, 'bfloat16' in the evidence",
    ),
    (
        {**WITHIN, "id": "D"},
        {"parameter_dtypes": DTYPES["parameter_dtypes"]},
        "arms.plain.rounded_to: 'bfloat16' in the",
    ),
    ({**WITHIN, "id": "N"}, {"ends": NEAR["ends"]}, "arms.plain.moves: True in the contract, False in the evidence"),
    (
        NEAR,
        {"ends": {"control": "untrained", "at_most": 0.01}},
        "arms.untrained.moves: True in the contract, False in the evidence",
    ),
    (REPEATED, {"runs": 4}, "arms.plain.replicas: 4 in the contract, 3 in the evidence"),
]


@pytest.mark.parametrize(("claim", "change", "said"), CHANGES)
def test_a_claim_with_a_changed_probe_setting_is_not_run(
    claim: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    claims = [TRAJECTORY, claim] if claim is THROUGHPUT else [claim]
    *_, (_, _, workload, made) = units(*claims)
    [*_, (contract, changed, _, _)] = units(*claims[:-1], {**claim, **change})
    assert str(first_difference(contract, changed, workload, made)).startswith(said)


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        (THROUGHPUT, {"at_least": 2.0, "confidence": 0.95, "limits": {"host_load_per_core": 2.0}}),
        (KERNELS, {"max_relative_error": {"float32": 1e-7}}),
        (GRADIENTS, {"equality": "within", "max_abs_difference": 0.1}),
        (GRADIENTS, {"steps": [2]}),
        (REPEATED, {"runs": 2}),
        (ACCUMULATION, {"max_relative_difference": 0.2}),
        (DTYPES, {"parameter_dtypes": None}),
        (NEAR, {"ends": {"control": "synchronizing", "at_most": 0.5}}),
        (MEMORY, {"growth_at_most": 0.2}),
        (CAPTURE, {"captures": 2, "nodes_at_least": 10}),
    ],
)
def test_a_claim_that_needs_no_more_than_a_run_recorded_is_judged_from_this_run(
    claim: dict[str, Any], change: dict[str, Any]
) -> None:
    claims = [TRAJECTORY, claim] if claim is THROUGHPUT else [claim]
    *_, (_, _, workload, made) = units(*claims)
    [*_, (contract, changed, _, _)] = units(*claims[:-1], {**claim, **change})
    assert first_difference(contract, changed, workload, made) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arm": Arm(capture="step", ranks=2)}, "arms.graphed.ranks: 1 in the contract, 2 in the evidence"),
        ({"watch_every_step": False}, "arms.graphed.watch_every_step: True in the contract, False in the evidence"),
    ],
)
def test_an_arm_executed_differently_than_the_contract_demands_is_reported(change: dict[str, Any], said: str) -> None:
    *_, (contract, claim, workload, [made]) = units(SYNCS)
    graphed = made.arms["graphed"].model_copy(update=change)
    other = made.model_copy(update={"arms": {**made.arms, "graphed": graphed}})
    assert str(first_difference(contract, claim, workload, [other])) == said


def test_a_single_larger_measurement_does_not_replace_the_two_measurements_that_a_claim_requires() -> None:
    *_, (_, _, workload, made) = units(TRAJECTORY, {**THROUGHPUT, "processes": 12})
    [*_, (contract, claim, _, _)] = units(TRAJECTORY, {**THROUGHPUT, "processes": 6, "measurements": 2})
    found = str(first_difference(contract, claim, workload, made))
    assert found.startswith("measurement: 1 in the contract, 0 in the evidence")


def test_a_repeated_process_does_not_replace_the_several_processes_that_a_claim_demands() -> None:
    *_, (contract, claim, workload, made) = units(TRAJECTORY, THROUGHPUT)
    repeated = [made[0]] * len(made)
    assert str(first_difference(contract, claim, workload, repeated)).startswith("process: 1 in the contract, 0 in the")


def test_runs_of_one_contract_with_different_data_are_not_judged_together() -> None:
    *_, (contract, claim, workload, made) = units(TRAJECTORY, THROUGHPUT)
    other = [made[0].model_copy(update={"data": "elsewhere"}), *made[1:]]
    assert str(first_difference(contract, claim, workload, other)).startswith("data: one for all runs in the contract")


def test_a_run_without_evidence_is_not_reported_as_a_run_of_a_different_contract() -> None:
    *_, (contract, claim, workload, made) = units(TRAJECTORY, THROUGHPUT)
    for lost in range(len(made)):
        assert first_difference(contract, claim, workload, [*made[:lost], *made[lost + 1 :]], unread=1) is None
    assert first_difference(contract, claim, workload, made[:-1]) is not None
