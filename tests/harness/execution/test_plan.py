"""Planning: units, shared runs, the order of arms, filters."""

from __future__ import annotations

from typing import Any

import pytest
from planning import ARMS, CAPTURE, GRADIENTS, GUARDS, H200, PTX, SYNCS, THROUGHPUT, TRAJECTORY, WORKLOADS, planned
from run_builders import SYSTEM

from harness.errors import UsageError


def test_claims_on_one_workload_share_one_paired_run() -> None:
    result = planned(TRAJECTORY, GRADIENTS, CAPTURE, SYNCS)
    [run] = result.runs
    assert [unit.runs for unit in result.units] == [["c+w+paired"]] * 4
    assert (run.id, run.probe, run.contract, run.workload_name) == ("c+w+paired", "paired", "c", "w")
    assert run.workload.steps == 3
    assert list(run.arms) == ["plain", "graphed", "untrained", "synchronizing"]  # baseline, candidate, controls
    assert {name: arm.replicas for name, arm in run.arms.items()} == {
        "plain": 2,  # the noise floor
        "graphed": 1,
        "untrained": 1,
        "synchronizing": 1,
    }
    assert [name for name, arm in run.arms.items() if arm.observe_syncs] == ["graphed", "synchronizing"]
    assert run.baseline_of == {"graphed": "plain"}
    assert run.gradient_steps == [0, 2]
    assert run.gradient_arms == ["graphed", "plain"]
    assert run.arms["untrained"].arm.settings() == {"learning_rate": 0}
    assert run.arms["graphed"].arm.capture == "step"
    assert run.arms["plain"].system == SYSTEM


def test_candidates_are_executed_in_the_order_of_the_contract() -> None:
    """A claim about gradients moves its baseline to the front, but does not move its candidate to the end."""
    compiled = {**TRAJECTORY, "id": "COMPILED", "candidate": "compiled"}
    [run] = planned(TRAJECTORY, GRADIENTS, compiled, arms={**ARMS, "compiled": {"compile": True}}).runs
    assert list(run.arms) == ["plain", "graphed", "compiled", "untrained"]


def test_as_many_repetitions_are_planned_as_a_repeatability_claim_compares() -> None:
    claim = {
        "id": "R",
        "kind": "repeatability",
        "candidate": "plain",
        "runs": 5,
        "equality": "bitwise",
        "max_abs_difference": 1e-5,
        "guards": GUARDS,
    }
    [run] = planned(claim, TRAJECTORY).runs
    assert run.arms["plain"].replicas == 5


def test_an_arm_may_name_its_own_system() -> None:
    arms = {**ARMS, "plain": {"system": "other:Twin"}}
    [run] = planned(TRAJECTORY, arms=arms).runs
    assert (run.arms["plain"].system, run.arms["graphed"].system) == ("other:Twin", SYSTEM)


def test_a_candidate_with_two_gradient_baselines_needs_two_runs() -> None:
    other = {**GRADIENTS, "id": "G2", "baseline": "synchronizing"}
    result = planned(GRADIENTS, other)
    assert [unit.runs for unit in result.units] == [["c+w+paired"], ["c+w+paired+1"]]
    assert [run.baseline_of for run in result.runs] == [{"graphed": "plain"}, {"graphed": "synchronizing"}]


def test_two_arms_that_are_each_others_gradient_baseline_need_two_runs() -> None:
    other = {**GRADIENTS, "id": "G2", "candidate": "plain", "baseline": "graphed"}
    result = planned(GRADIENTS, other)
    assert [list(run.arms) for run in result.runs] == [["plain", "graphed"], ["graphed", "plain"]]


def test_a_chain_of_gradient_baselines_runs_in_its_order() -> None:
    second = {**GRADIENTS, "id": "G2", "candidate": "untrained", "baseline": "graphed"}
    [run] = planned(second, GRADIENTS).runs
    assert list(run.arms) == ["plain", "graphed", "untrained"]


def test_arms_are_executed_after_their_baselines_even_when_a_baseline_has_a_baseline() -> None:
    second = {**TRAJECTORY, "id": "T2", "candidate": "graphed", "baseline": "untrained", "guards": {"steps": 1}}
    first = {**TRAJECTORY, "id": "T1", "candidate": "untrained", "baseline": "plain", "guards": {"steps": 1}}
    third = {**TRAJECTORY, "id": "T3", "candidate": "plain", "baseline": "synchronizing", "guards": {"steps": 1}}
    [run] = planned(second, first, third).runs
    assert list(run.arms) == ["synchronizing", "plain", "untrained", "graphed"]


def test_each_timing_of_a_speed_claim_is_planned_in_a_separate_process() -> None:
    result = planned(TRAJECTORY, THROUGHPUT, machine=H200)
    timings = [run for run in result.runs if run.probe == "throughput"]
    assert [run.id for run in timings] == [f"c+w+throughput+F+0+{process}" for process in range(6)]
    assert [run.process for run in timings] == [0, 1, 2, 3, 4, 5]
    assert {run.measurement for run in timings} == {0}
    assert list(timings[0].arms) == ["plain", "graphed"]
    assert timings[0].settings == {"candidate": "graphed", "baseline": "plain", "blocks": 4, "block_steps": 5}
    assert result.units[1].runs == [run.id for run in timings]


def test_each_planned_measurement_has_all_its_processes() -> None:
    timings = planned(TRAJECTORY, {**THROUGHPUT, "measurements": 3}, machine=H200).runs[1:]
    assert [run.process for run in timings] == list(range(18))
    assert [run.measurement for run in timings] == [0] * 6 + [1] * 6 + [2] * 6


def test_composite_claims_plan_each_part() -> None:
    texts = ("id",)
    parts = [{k: v for k, v in claim.items() if k not in texts} for claim in (CAPTURE, THROUGHPUT, PTX)]
    result = planned({"id": "X", "kind": "composite", "parts": parts}, machine=H200)
    assert result.units[0].runs == [
        "c+w+paired",
        *(f"c+w+throughput+X+1+{process}" for process in range(6)),
        "c+w+kernels+graphed+0",
    ]


def test_kernel_probes_with_equal_settings_share_a_run() -> None:
    coverage = {"id": "K", "kind": "prewarm", "candidate": "graphed", "scope": "coverage", "target": "sm_90"}
    other_target = {**PTX, "id": "P2", "target": "sm_100"}
    result = planned(PTX, coverage, {**PTX, "id": "P1"}, other_target)
    assert [unit.runs for unit in result.units] == [
        ["c+w+kernels+graphed+0"],
        ["c+w+kernels+graphed+1"],
        ["c+w+kernels+graphed+0"],
        ["c+w+kernels+graphed+2"],
    ]
    # what a step asks for takes longer to find out than what is planned, and only coverage needs it
    assert [run.settings for run in result.runs] == [
        {"target": "sm_90"},
        {"target": "sm_90", "scope": "coverage"},
        {"target": "sm_100"},
    ]


@pytest.mark.parametrize(
    ("claim", "probe", "settings"),
    [
        (
            {"kind": "prewarm", "scope": "device", "handles": ["cublas"], "memory_filled": True},
            "prewarm",
            {"target": "device", "handles": ["cublas"], "memory_filled": True},
        ),
        (
            {"kind": "kernel_match", "operations": ["clip"], "max_relative_error": {"float32": 1e-5}},
            "kernel_match",
            {"operations": ["clip"], "max_relative_error": {"float32": 1e-5}, "magnitudes": [1.0]},
        ),
        (
            {"kind": "memory_steady", "per": "recapture", "after": 2, "growth_at_most": 0.01},
            "recapture",
            {"after": 2},
        ),
        ({"kind": "memory_steady", "per": "replay", "after": 2, "growth_at_most": 0.01}, "paired", {}),
    ],
)
def test_each_kind_is_planned_with_its_probe_and_settings(
    claim: dict[str, Any], probe: str, settings: dict[str, Any]
) -> None:
    [run] = planned({"id": "K", "candidate": "graphed", **claim}, machine=H200).runs
    assert (run.probe, run.settings, list(run.arms)) == (probe, settings, ["graphed"])


def test_every_unit_of_a_contract_is_planned_in_its_order() -> None:
    result = planned(
        {**TRAJECTORY, "judged_on": ["large", "small"]}, {**CAPTURE, "judged_on": ["small"]}, workloads_=WORKLOADS
    )
    assert [(unit.claim, unit.workload) for unit in result.units] == [
        ("T", "large"),
        ("T", "small"),
        ("C", "small"),
    ]
    assert [run.id for run in result.runs] == ["c+small+paired", "c+large+paired"]


def test_claim_and_workload_filters_narrow_the_plan() -> None:
    result = planned(TRAJECTORY, CAPTURE, workloads_=WORKLOADS, claims=["C"], workloads=["large"])
    assert [(unit.claim, unit.workload) for unit in result.units] == [("C", "large")]
    assert [list(run.arms) for run in result.runs] == [["graphed"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"claims": ["other"]}, "no contract has this claim; found `other`; known: C, T"),
        ({"workloads": ["big"]}, "no contract has this workload; found `big`; known: w"),
        ({"fault": "stale"}, "no contract has this fault; found `stale`; known: none"),
    ],
)
def test_unknown_claim_or_workload_names_are_refused_by_the_plan(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        planned(TRAJECTORY, CAPTURE, **options)
    assert str(raised.value) == message


def test_a_misspelled_claim_is_answered_with_the_nearest_claim() -> None:
    claim = {**TRAJECTORY, "id": "F-GRAPH-BWD-001"}
    with pytest.raises(UsageError, match="did you mean `F-GRAPH-BWD-001`"):
        planned(claim, claims=["F-GRAPH-BWD-1"])


def test_kernel_comparisons_with_different_operations_and_bounds_share_a_run() -> None:
    match: dict[str, Any] = {"kind": "kernel_match", "candidate": "graphed", "max_relative_error": {"float32": 1e-5}}
    claims: list[dict[str, Any]] = [
        {"id": "A", **match, "operations": ["a", "both"]},
        {"id": "B", **match, "operations": ["b", "both"], "max_relative_error": {"float32": 1e-7}},
        {"id": "C", **match, "operations": ["a"], "magnitudes": [2.0]},
        {"id": "D", **match, "operations": ["a"], "max_relative_error": {"bfloat16": 1e-5}},
    ]
    result = planned(*claims)
    assert [run.settings["operations"] for run in result.runs] == [["a", "both", "b"], ["a"], ["a"]]
    first, second, third = (run.id for run in result.runs)
    assert [unit.runs for unit in result.units] == [[first], [first], [second], [third]]


@pytest.mark.parametrize(
    ("others", "tried"),
    [
        ({"magnitudes": [1e5]}, [(["a", "b"], [1.0, 1e5])]),
        ({"magnitudes": [1e-6, 1e5]}, [(["a", "b"], [1.0, 1e5, 1e-6])]),
        ({"operations": ["a"], "magnitudes": [1e5]}, [(["a", "b"], [1.0, 1e5])]),
        ({"operations": ["a"], "magnitudes": [1e-6]}, [(["a", "b"], [1.0, 1e5]), (["a"], [1e-6])]),
        ({"operations": ["c"], "magnitudes": [1.0]}, [(["a", "b"], [1.0, 1e5]), (["c"], [1.0])]),
        ({"max_relative_error": {"float32": 1e-4}}, [(["a", "b"], [1.0, 1e5])]),
        ({"max_relative_error": {"bfloat16": 1e-5}}, [(["a", "b"], [1.0, 1e5])] * 2),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_kernel_comparisons_share_a_run_only_if_the_run_contains_no_additional_cases(
    others: dict[str, Any], tried: list[tuple[list[str], list[float]]]
) -> None:
    match = {"kind": "kernel_match", "candidate": "graphed", "max_relative_error": {"float32": 1e-5}}
    one: dict[str, Any] = {"id": "A", **match, "operations": ["a", "b"], "magnitudes": [1.0, 1e5]}
    for claims in ([one, {**one, "id": "B", **others}], [{**one, "id": "B", **others}, one]):
        settings: list[dict[str, Any]] = [dict(run.settings) for run in planned(*claims).runs]
        found = [(sorted(each["operations"]), sorted(each["magnitudes"])) for each in settings]
        assert sorted(found) == sorted((names, sorted(magnitudes)) for names, magnitudes in tried)


def test_long_claim_names_are_shortened_to_a_valid_directory_name() -> None:
    workloads = {"w" * 100: WORKLOADS["small"], "w" * 99 + "v": WORKLOADS["small"]}
    result = planned({**THROUGHPUT, "id": "F" * 100}, workloads_=workloads, machine=H200)
    identities = [run.id for run in result.runs]
    assert len(identities) == len(set(identities)) == 12
    assert max(map(len, identities)) <= 150


def test_every_planned_run_has_the_data_and_the_model_directory_of_the_command() -> None:
    [run] = planned(CAPTURE, data="text.txt", model_directory="checkpoint").runs
    assert (run.data, run.model_directory) == ("text.txt", "checkpoint")
