"""Planning: units, shared runs, the order of arms, filters, obstacles and faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from run_builders import SYSTEM, make_contract

from harness.contract.schema import Contract
from harness.errors import UsageError
from harness.evidence.cuda_driver import Gpu
from harness.evidence.environment import Machine
from harness.runners.plan import Plan, plan
from harness.system.protocol import CAPABILITIES, Expectation, FaultDescription, SystemDescription

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
    "processes": 3,
    "blocks": 4,
    "block_steps": 5,
    "trajectory": "T",
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


def test_repeatability_asks_for_as_many_replicas_as_it_judges() -> None:
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


def test_gradient_baselines_in_a_circle_need_two_runs() -> None:
    other = {**GRADIENTS, "id": "G2", "candidate": "plain", "baseline": "graphed"}
    result = planned(GRADIENTS, other)
    assert [list(run.arms) for run in result.runs] == [["plain", "graphed"], ["graphed", "plain"]]


def test_a_chain_of_gradient_baselines_runs_in_its_order() -> None:
    second = {**GRADIENTS, "id": "G2", "candidate": "untrained", "baseline": "graphed"}
    [run] = planned(second, GRADIENTS).runs
    assert list(run.arms) == ["plain", "graphed", "untrained"]


def test_throughput_runs_in_processes_of_its_own() -> None:
    result = planned(TRAJECTORY, THROUGHPUT)
    timings = [run for run in result.runs if run.probe == "throughput"]
    assert [run.id for run in timings] == ["c+w+throughput+F+0+0", "c+w+throughput+F+0+1", "c+w+throughput+F+0+2"]
    assert [run.process for run in timings] == [0, 1, 2]
    assert list(timings[0].arms) == ["plain", "graphed"]
    assert timings[0].settings == {"candidate": "graphed", "baseline": "plain", "blocks": 4, "block_steps": 5}
    assert result.units[1].runs == [run.id for run in timings]


def test_composite_claims_plan_each_part() -> None:
    texts = ("id",)
    parts = [{k: v for k, v in claim.items() if k not in texts} for claim in (CAPTURE, THROUGHPUT, PTX)]
    result = planned({"id": "X", "kind": "composite", "parts": parts})
    assert result.units[0].runs == [
        "c+w+paired",
        "c+w+throughput+X+1+0",
        "c+w+throughput+X+1+1",
        "c+w+throughput+X+1+2",
        "c+w+kernels+graphed+0",
    ]


def test_kernel_probes_are_shared_when_they_ask_the_same() -> None:
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
def test_probe_and_settings_by_kind(claim: dict[str, Any], probe: str, settings: dict[str, Any]) -> None:
    [run] = planned({"id": "K", "candidate": "graphed", **claim}, machine=H200).runs
    assert (run.probe, run.settings, list(run.arms)) == (probe, settings, ["graphed"])


WORKLOADS = {
    "small": {"model": "m", "batch_size": 4, "seq_len": 16, "steps": 3},
    "large": {"model": "m", "batch_size": 8, "seq_len": [16, 32], "steps": 3},
}


def test_every_unit_of_a_contract_is_planned_in_its_order() -> None:
    result = planned({**TRAJECTORY, "on": ["large", "small"]}, {**CAPTURE, "on": ["small"]}, workloads_=WORKLOADS)
    assert [(unit.claim, unit.workload) for unit in result.units] == [
        ("T", "large"),
        ("T", "small"),
        ("C", "small"),
    ]
    assert [run.id for run in result.runs] == ["c+small+paired", "c+large+paired"]


def test_filters_narrow_the_plan() -> None:
    result = planned(TRAJECTORY, CAPTURE, workloads_=WORKLOADS, claims=["C"], workloads=["large"])
    assert [(unit.claim, unit.workload) for unit in result.units] == [("C", "large")]
    assert [list(run.arms) for run in result.runs] == [["graphed"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"claims": ["other"]}, "no contract here has this claim; found `other`; known: C, T"),
        ({"workloads": ["big"]}, "no contract here has this workload; found `big`; known: w"),
        ({"fault": "stale"}, "no contract here has this fault; found `stale`; known: none"),
    ],
)
def test_unknown_names_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        planned(TRAJECTORY, CAPTURE, **options)
    assert str(raised.value) == message


def test_a_near_miss_is_pointed_out() -> None:
    claim = {**TRAJECTORY, "id": "F-GRAPH-BWD-001"}
    with pytest.raises(UsageError, match="did you mean `F-GRAPH-BWD-001`"):
        planned(claim, claims=["F-GRAPH-BWD-1"])


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
            "needs 200 GiB of GPU memory: this machine has 139.8 GiB",
        ),
        (
            CAPTURE,
            {"memory_gib": 32},
            NO_GPU,
            "needs_memory",
            "needs 32 GiB of host memory: this machine has 16.0 GiB",
        ),
        (
            CAPTURE,
            {"modules": ["json", "no_such_module"]},
            NO_GPU,
            "module_missing",
            "needs no_such_module: not installed here",
        ),
    ],
)
def test_what_a_machine_lacks_is_an_obstacle_and_nothing_is_run(
    claim: dict[str, Any], needs: dict[str, Any], machine: Machine, reason: str, message: str
) -> None:
    result = planned(claim, machine=machine, workloads_=on(**needs))
    [unit] = result.units
    assert unit.obstacle is not None
    assert (unit.obstacle.reason, unit.obstacle.message) == (reason, message)
    assert (unit.runs, result.runs) == ([], [])


def test_an_obstacle_to_one_claim_leaves_the_others_their_run() -> None:
    result = planned({**CAPTURE, "mechanism": "cuda_graph"}, TRAJECTORY)
    assert [unit.obstacle is None for unit in result.units] == [False, True]
    assert [run.id for run in result.runs] == ["c+w+paired"]


def test_what_the_machine_has_is_no_obstacle() -> None:
    workloads = on(device="cuda", memory_gib=12, modules=["json"])
    result = planned({**CAPTURE, "mechanism": "cuda_graph"}, machine=H200, workloads_=workloads)
    assert result.units[0].obstacle is None


def test_an_unreadable_gpu_goes_to_the_ptx_judge_and_not_to_not_run() -> None:
    broken = replace(NO_GPU, gpu_unreadable=True)
    result = planned({**PTX, "target": "device"}, {**CAPTURE, "mechanism": "cuda_graph"}, machine=broken)
    assert [unit.obstacle is None for unit in result.units] == [True, False]


@pytest.mark.parametrize(
    ("claim", "missing"),
    [
        (TRAJECTORY, "inputs"),
        (TRAJECTORY, "parameters"),
        ({**TRAJECTORY, "guards": {"steps": 3, "clip_active_steps": 2}}, "gradient_norms"),
        (GRADIENTS, "gradients"),
        ({**GRADIENTS, "clipped_norm": {"at_most": 1.0, "relative_rounding": 1e-6}}, "gradient_norms"),
        (CAPTURE, "capture"),
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
def test_a_capability_that_the_system_lacks_is_named(claim: dict[str, Any], missing: str) -> None:
    lacking = replace(describe(""), capabilities=frozenset(CAPABILITIES) - {missing})
    result = planned(claim, describe=lambda _system: lacking)
    [unit] = result.units
    assert unit.obstacle is not None
    assert unit.obstacle.reason == "capability_missing"
    assert unit.obstacle.message == f"system lacks the capability `{missing}` that {claim['kind']} needs"


def test_kernel_comparisons_that_differ_in_operations_alone_share_a_run() -> None:
    match: dict[str, Any] = {"kind": "kernel_match", "candidate": "graphed", "max_relative_error": {"float32": 1e-5}}
    claims: list[dict[str, Any]] = [
        {"id": "A", **match, "operations": ["a", "both"]},
        {"id": "B", **match, "operations": ["b", "both"]},
        {"id": "C", **match, "operations": ["a"], "magnitudes": [2.0]},
    ]
    result = planned(*claims)
    assert [run.settings["operations"] for run in result.runs] == [["a", "both", "b"], ["a"]]
    first, second = (run.id for run in result.runs)
    assert [unit.runs for unit in result.units] == [[first], [first], [second]]


def test_a_capture_scope_that_the_system_does_not_understand() -> None:
    plain = replace(describe(""), captures=frozenset({"none"}))
    [unit] = planned(CAPTURE, describe=lambda _system: plain).units
    assert unit.obstacle is not None
    assert unit.obstacle.message == "system does not understand `capture: step` of arm graphed"


def test_a_system_that_cannot_describe_itself_is_left_to_its_worker() -> None:
    def broken(system: str) -> SystemDescription:
        raise ImportError(system)

    result = planned(CAPTURE, describe=broken)
    assert result.units[0].obstacle is None
    assert len(result.runs) == 1


def with_fault(plant: Any, breaks: tuple[str, ...] = (), needs: Any = "any") -> SystemDescription:
    expectation = Expectation("FAIL", "differs")
    fault = FaultDescription("stale", "", plant, dict.fromkeys(breaks, expectation), needs)
    return replace(describe(""), faults={"stale": fault})


@pytest.mark.parametrize(
    ("plant", "arms"),
    [("candidate", ["graphed"]), ("baseline", ["plain"]), ("both", ["graphed", "plain"])],
)
def test_a_fault_is_planted_in_the_arms_of_the_claims_it_breaks(plant: str, arms: list[str]) -> None:
    description = with_fault(plant, breaks=("T",))
    [run] = planned(TRAJECTORY, SYNCS, describe=lambda _system: description, fault="stale").runs
    assert (run.fault, run.fault_arms) == ("stale", arms)


def test_a_claim_that_lists_the_fault_counts_as_broken_by_it() -> None:
    listing = {**SYNCS, "falsified_by": ["stale"]}
    description = with_fault("baseline")
    [run] = planned(TRAJECTORY, listing, describe=lambda _system: description, fault="stale").runs
    assert run.fault_arms == ["synchronizing"]  # the control plays the baseline of host_syncs


def test_a_fault_that_breaks_none_of_the_claims_is_planted_all_the_same() -> None:
    description = with_fault("candidate", breaks=("OTHER",))
    [run] = planned(CAPTURE, describe=lambda _system: description, fault="stale").runs
    assert run.fault_arms == ["graphed"]


def test_a_run_without_a_faulted_arm_carries_no_fault() -> None:
    description = with_fault("candidate", breaks=("T",))
    kernels = {**PTX, "candidate": "untrained"}
    result = planned(TRAJECTORY, kernels, describe=lambda _system: description, fault="stale")
    assert [(run.probe, run.fault, run.fault_arms) for run in result.runs] == [
        ("paired", "stale", ["graphed"]),
        ("kernels", None, []),
    ]


def test_the_harness_own_faults_fit_every_system() -> None:
    fault = FaultDescription("extra_sync", "", "both", {"host_syncs": Expectation("FAIL", "sync_count")})
    [run] = planned(TRAJECTORY, SYNCS, fault="extra_sync", harness_faults={"extra_sync": fault}).runs
    assert (run.fault, run.fault_arms) == ("extra_sync", ["graphed", "synchronizing"])  # by the kind it breaks


def test_a_fault_that_needs_cuda_is_not_planted_without() -> None:
    description = with_fault("candidate", needs="cuda")
    result = planned(CAPTURE, describe=lambda _system: description, fault="stale")
    assert result.units[0].obstacle is not None
    assert result.units[0].obstacle.message == "the fault needs CUDA: this machine has no CUDA device"
    assert result.runs == []


def test_a_contract_whose_system_does_not_offer_the_fault_says_so() -> None:
    contracts = [
        Loaded(make_contract(CAPTURE, arms=ARMS)),
        Loaded(make_contract(CAPTURE, arms=ARMS, id="d", system="other:Twin")),
    ]

    def by_system(system: str) -> SystemDescription:
        return with_fault("candidate") if system == SYSTEM else describe(system)

    result = plan(contracts, machine=NO_GPU, describe=by_system, fault="stale")
    assert result.units[0].obstacle is None
    assert result.units[1].obstacle is not None
    assert result.units[1].obstacle.reason == "fault_not_offered"


def test_long_names_still_name_a_directory() -> None:
    workloads = {"w" * 100: WORKLOADS["small"], "w" * 99 + "v": WORKLOADS["small"]}
    result = planned({**THROUGHPUT, "id": "F" * 100}, workloads_=workloads)
    identities = [run.id for run in result.runs]
    assert len(identities) == len(set(identities)) == 6
    assert max(map(len, identities)) <= 150


def test_data_and_model_directory_reach_every_run() -> None:
    [run] = planned(CAPTURE, data="text.txt", model_directory="checkpoint").runs
    assert (run.data, run.model_directory) == ("text.txt", "checkpoint")
