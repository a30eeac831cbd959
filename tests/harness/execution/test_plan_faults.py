"""Planning: in which arms of which runs a fault is planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planning import ARMS, CAPTURE, NO_GPU, PTX, SYNCS, TRAJECTORY, Loaded, describe, planned
from run_builders import SYSTEM, make_contract

from harness.planning.plan import plan
from harness.system.protocol import Expectation, FaultDescription, SystemDescription


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


def test_a_fault_of_the_baseline_is_planted_in_the_nudged_control_too() -> None:
    """Apart from rounding, a nudged control does what the baseline does; otherwise only the control would differ."""
    within = {
        **{name: TRAJECTORY[name] for name in ("id", "kind", "candidate", "baseline", "guards")},
        "equality": "within",
        "max_relative_difference": 0.1,
        "ends": {"control": "nudged", "at_most": 0.1},
    }
    arms = {**ARMS, "nudged": {}}
    for plant, expected in (("baseline", ["nudged", "plain"]), ("both", ["graphed", "nudged", "plain"])):
        description = with_fault(plant, breaks=("T",))
        [run] = planned(within, describe=lambda _system, found=description: found, fault="stale", arms=arms).runs
        assert sorted(run.fault_arms) == expected


def test_a_claim_that_lists_a_fault_counts_as_broken_by_the_fault() -> None:
    listing = {**SYNCS, "falsified_by": ["stale"]}
    description = with_fault("baseline")
    [run] = planned(TRAJECTORY, listing, describe=lambda _system: description, fault="stale").runs
    assert run.fault_arms == ["synchronizing"]  # the control plays the baseline of host_syncs


def test_a_fault_that_breaks_no_claim_of_the_contract_is_planted_anyway() -> None:
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


def test_a_fault_of_the_harness_can_be_planted_in_every_system() -> None:
    fault = FaultDescription("extra_sync", "", "both", {"host_syncs": Expectation("FAIL", "sync_count")})
    [run] = planned(TRAJECTORY, SYNCS, fault="extra_sync", harness_faults={"extra_sync": fault}).runs
    assert (run.fault, run.fault_arms) == ("extra_sync", ["graphed", "synchronizing"])  # by the kind it breaks


def test_a_fault_that_needs_cuda_prevents_the_unit_from_running_without_a_gpu() -> None:
    description = with_fault("candidate", needs="cuda")
    result = planned(CAPTURE, describe=lambda _system: description, fault="stale")
    assert result.units[0].obstacle is not None
    assert result.units[0].obstacle.message == "the fault needs CUDA: this machine has no CUDA device"
    assert result.runs == []


def test_a_fault_that_the_system_does_not_offer_prevents_the_unit_from_running() -> None:
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
