"""Warm steps: a captured arm begins with so many plain ones, for state that an optimizer makes in its first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claims_in_process import ARMS, CLAIM, Loaded, contract_of, executed, judged, judged_on, planned_of
from lazy_systems import Lazy
from planning import NO_GPU
from pydantic import ValidationError

from harness.contract.load import problems
from harness.contract.schema import MOST_WARM_STEPS, Arm
from harness.judging.registry import judge_unit
from harness.judging.verdict import Status, Verdict
from harness.planning.plan import plan
from harness.system.protocol import WARM_STEPS
from harness.system.wrappers import FAULTY_STEP

pytestmark = pytest.mark.usefixtures("short_turns")

COMMON = {name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on")}
CAPTURE = COMMON | {"kind": "capture", "candidate": "captured", "captures": 1, "per_shape": True}
LONG = COMMON | {"kind": "long_replay", "candidate": "captured", "baseline": "plain", "steps": 12, "every": 3}
GRADIENTS = COMMON | {
    "kind": "gradient_match",
    "candidate": "captured",
    "baseline": "plain",
    "equality": "bitwise",
    "steps": [0, 1, 2, 11],
}


def arms(warm_steps: int) -> dict[str, dict[str, Any]]:
    return {**ARMS, "captured": {"capture": "step", "warm_steps": warm_steps}}


def verdict(claim: dict[str, Any], folder: Path, warm_steps: int, system: str = "Lazy", **more: Any) -> Verdict:
    return judged(f"lazy_systems:{system}", folder, claim, arms=arms(warm_steps), **more)


def test_without_a_plain_step_before_the_capture_the_claim_is_undecided_and_proposes_warm_steps(tmp_path: Path) -> None:
    found = verdict(CLAIM, tmp_path, 0)
    assert (found.status, found.reason) == (Status.INCONCLUSIVE, "candidate_not_captured"), found.message
    assert WARM_STEPS in found.message


@pytest.mark.parametrize("warm_steps", [1, 3])
def test_claims_pass_after_warm_steps_and_their_verdicts_state_their_number(warm_steps: int, tmp_path: Path) -> None:
    contract = contract_of("lazy_systems:Lazy", CLAIM, arms=arms(warm_steps), beside=[CAPTURE, LONG, GRADIENTS])
    for found in judged_on(contract, tmp_path):
        assert found.reason == "held", found.message
        assert found.figures["warm_steps"].value == warm_steps
        steps = "1 plain step" if warm_steps == 1 else f"{warm_steps} plain steps"
        assert f"; arm captured is captured after {steps}" in found.message


@pytest.mark.parametrize(
    ("system", "step"), [("LazyWithFrozenRate", 3), ("LazyWithLostUpdate", 2), ("LazyWithOtherWarmStep", 1)]
)
def test_a_training_that_goes_wrong_at_a_step_fails_from_this_step_on(system: str, step: int, tmp_path: Path) -> None:
    found = verdict(CLAIM, tmp_path, 1, system)
    assert (found.status, found.reason) == (Status.FAIL, "differs"), found.message
    assert found.figures["first_differing_step"].value == step


@pytest.mark.parametrize(
    ("claim", "fault", "reason"),
    [
        (CLAIM, "stale_batch", "unequal_batches"),
        (CLAIM, "dropped_last_update", "end_differs"),
        (CAPTURE, "doubled_step", "extra_step"),
        (CAPTURE, "dropped_step", "lost_step"),
    ],
)
def test_faults_are_found_after_the_fewest_and_most_warm_steps(
    claim: dict[str, Any], fault: str, reason: str, tmp_path: Path
) -> None:
    both = {**arms(1), "late": {"capture": "step", "warm_steps": MOST_WARM_STEPS}}
    contract = contract_of("lazy_systems:Lazy", claim, arms=both, beside=[claim | {"candidate": "late"}])
    found = judged_on(contract, tmp_path, fault)
    assert [(each.status, each.reason) for each in found] == [(Status.FAIL, reason)] * 2


def test_faults_are_planted_in_steps_that_are_replays() -> None:
    assert MOST_WARM_STEPS < FAULTY_STEP


def test_more_warm_steps_than_the_contract_allows_fail(tmp_path: Path) -> None:
    contract = contract_of("lazy_systems:LazyAndSlow", CLAIM, arms=arms(1), beside=[CAPTURE, LONG])
    reasons = [found.reason for found in judged_on(contract, tmp_path)]
    assert reasons == ["candidate_not_captured", "uncaptured_steps", "uncaptured_steps"]


def test_rebound_optimizer_state_is_tracked_and_an_unreplayed_step_count_is_named(tmp_path: Path) -> None:
    """The optimizer CAME has such state.

    A correct step does not fail because of a count that no replay changes and that nothing reads.
    """
    contract = contract_of("lazy_systems:LazyAndCounted", CLAIM, arms=arms(1))
    evidence = [executed(run, tmp_path / run.id) for run in planned_of(contract).runs]
    found = judge_unit(contract, contract.claims[0], "w", evidence)
    assert (found.status, found.reason) == (Status.INCONCLUSIVE, "host_value_unexplained"), found.message
    assert found.figures["state_differing"].value == 4  # a count for each parameter, and no size
    assert "by the name optimizer.state.0.step, optimizer.state.1.step" in found.message
    explained = contract.model_copy(update={"host_values": {"optimizer.state.0.step": "Nothing reads it."}})
    found = judge_unit(explained, explained.claims[0], "w", evidence)
    assert found.reason == "held", found.message


def test_the_number_of_warm_steps_in_the_contract_decides_and_not_that_in_the_evidence(tmp_path: Path) -> None:
    """The same recorded run is judged by two contracts."""
    contract = contract_of("lazy_systems:Lazy", CAPTURE, arms=arms(2))
    [run] = planned_of(contract).runs
    evidence = [executed(run, tmp_path / run.id)]
    assert judge_unit(contract, contract.claims[0], "w", evidence).reason == "held"
    stricter = contract_of("lazy_systems:Lazy", CAPTURE, arms=arms(1))
    assert judge_unit(stricter, stricter.claims[0], "w", evidence).reason == "uncaptured_steps"


def test_a_system_that_captures_every_step_satisfies_a_contract_with_warm_steps(tmp_path: Path) -> None:
    plain = contract_of("step_function_systems:Regression", CAPTURE, arms=arms(0))
    [run] = planned_of(plain).runs
    evidence = [executed(run, tmp_path / run.id)]
    warm = contract_of("step_function_systems:Regression", CAPTURE, arms=arms(1))
    assert judge_unit(warm, warm.claims[0], "w", evidence).reason == "held"


def test_a_schedule_of_shapes_is_captured_after_the_warm_steps(tmp_path: Path) -> None:
    contract = contract_of("lazy_systems:Lazy", CAPTURE, arms=arms(1))
    workload = contract.workloads["w"].model_copy(update={"seq_len": [3, 4]})
    contract = contract.model_copy(update={"workloads": {"w": workload}})
    evidence = [executed(run, tmp_path / run.id) for run in planned_of(contract).runs]
    found = judge_unit(contract, contract.claims[0], "w", evidence)
    assert found.reason == "held", found.message


def test_a_claim_with_warm_steps_is_not_run_if_the_system_makes_none() -> None:
    contract = contract_of("lazy_systems:Lazy", CAPTURE, arms=arms(1))
    [unit] = planned_of(contract).units
    assert unit.obstacle is None
    described = Lazy().describe()
    lacking = replace(described, capabilities=described.capabilities - {"warm_steps"})
    [unit] = plan([Loaded(contract)], machine=NO_GPU, describe=lambda _: lacking, harness_faults={}).units
    assert unit.obstacle is not None
    assert unit.obstacle.message == (
        "arm captured: lazy lacks the capability `warm_steps`; remove `warm_steps` from the arm"
    )


def test_warm_steps_are_refused_for_an_arm_without_capture() -> None:
    with pytest.raises(ValidationError, match="all its steps are plain"):
        Arm(capture="none", warm_steps=1)


def test_a_workload_that_ends_before_the_capture_is_refused() -> None:
    contract = contract_of("lazy_systems:Lazy", CAPTURE, steps=2, arms=arms(2))
    [problem] = problems(contract)
    assert (problem.path, problem.rule) == (("claims", 0, "candidate"), "an arm must be captured before its last step")
