"""The bound that a unit is judged by is that of its workload, its machine and its arm; the verdict says which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evidence_builders import STEPS, TRAJECTORY, graphed, trajectory_run, verdict_of
from judge_cases_capture import CAPTURE
from judge_cases_throughput import FASTER, processes

from harness.evidence.environment_records import GpuFacts
from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Verdict

H100 = GpuFacts(name="NVIDIA H100 80GB HBM3", architecture="sm_90")
A100 = GpuFacts(name="NVIDIA A100-SXM4-80GB", architecture="sm_80")


def cases(otherwise: float, *each: dict[str, Any]) -> dict[str, Any]:
    return {"otherwise": otherwise, "cases": list(each)}


def effect(bound: dict[str, Any]) -> dict[str, Any]:
    return {"guards": {"steps": STEPS, "training_effect": {"control": "untrained", "last": 2, "at_least": bound}}}


def faster(gpu: GpuFacts) -> Verdict:
    claim = FASTER | {"at_least": cases(1.1, {"gpu": "H100", "value": 1.3})}
    return verdict_of(claim, *processes(1.2), beside=[TRAJECTORY], gpu=gpu)


def test_a_speed_ratio_has_the_bound_of_its_gpu() -> None:
    here, there = faster(A100), faster(H100)
    assert (here.status, here.figures["at_least_bound"].value) == ("PASS", "1.1 (otherwise)")
    assert (there.reason, there.figures["at_least_bound"].value) == ("too_slow", "1.3 (gpu H100)")
    assert there.message.endswith("but 1.3 is required")


@pytest.mark.parametrize(("gpu", "reason"), [(H100, "node_count"), (A100, "held"), (GpuFacts(), "held")])
def test_a_node_bound_depends_on_the_compute_capability(gpu: GpuFacts, reason: str) -> None:
    bound = cases(1, {"capability_at_least": "9.0", "value": 10_000})
    claim = CAPTURE | {"nodes_at_most": None, "nodes_at_least": bound}
    verdict = verdict_of(claim, trajectory_run(), gpu=gpu)
    assert verdict.reason == reason, verdict.message


@pytest.mark.parametrize(("dtype", "reason"), [("bfloat16", "vacuous_training_effect"), ("float32", "held")])
def test_a_training_effect_bound_depends_on_the_data_type(dtype: str, reason: str) -> None:
    claim = TRAJECTORY | effect(cases(0.2, {"dtype": "bfloat16", "workload": "w", "value": 3.0}))
    candidate = graphed(facts={"layers": 2, "dtype": dtype})
    verdict = verdict_of(claim, trajectory_run(candidate))
    assert verdict.reason == reason
    assert verdict.figures["training_effect_demanded"].value == (3.0 if dtype == "bfloat16" else 0.2)


def test_a_bound_by_data_type_is_not_judged_if_no_arm_states_its_type() -> None:
    claim = TRAJECTORY | effect(cases(0.2, {"dtype": "bfloat16", "value": 3.0}))
    stated = verdict_of(claim, trajectory_run(graphed(facts={"layers": 2})))
    assert (stated.status, stated.reason) == ("NOT_RUN", "capability_missing")
    missing = verdict_of(claim)
    assert (missing.status, missing.reason) == ("ERROR", "evidence_missing")


def test_a_bound_by_workload_adds_no_bound_figure() -> None:
    verdict = verdict_of(TRAJECTORY | effect(cases(0.2, {"workload": "w", "value": 0.3})), trajectory_run())
    assert verdict.status == "PASS"
    assert [name for name in verdict.figures if name.endswith("_bound")] == []
    assert verdict.figures["training_effect_demanded"].value == 0.3


def test_the_trajectory_of_a_speed_ratio_uses_its_own_conditional_bounds() -> None:
    within = TRAJECTORY | {"equality": "within"}
    tight = within | {"max_abs_difference": cases(0.1, {"gpu": "H100", "value": 1e-9})}
    claim = FASTER | {"at_least": 1.01}
    runs = [_drifted(run) for run in processes(1.2)]
    assert verdict_of(claim, *runs, beside=[tight], gpu=A100).reason == "held"
    assert verdict_of(claim, *runs, beside=[tight], gpu=H100).reason == "exceeds_tolerance"


def _drifted(run: RunEvidence) -> RunEvidence:
    [execution] = run.arms["graphed"]
    series = replace(execution.series, loss=execution.series.loss + 1e-6)
    return replace(run, arms={**run.arms, "graphed": [replace(execution, series=series)]})


def test_parts_of_a_composite_claim_have_their_own_conditional_bounds() -> None:
    part = {"kind": "trajectory_match"} | TRAJECTORY | effect(cases(0.2, {"gpu": "H100", "value": 3.0}))
    del part["id"]
    other = {"kind": "trajectory_match"} | {key: value for key, value in TRAJECTORY.items() if key != "id"}
    verdict = verdict_of({"kind": "composite", "parts": [other, part]}, trajectory_run(), gpu=H100)
    assert verdict.reason == "vacuous_training_effect"
    name = "trajectory_match.2.guards_training_effect_at_least_bound"
    assert verdict.figures[name].value == "3 (gpu H100)"
