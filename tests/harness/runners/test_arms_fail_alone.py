"""An arm that fails costs the claims that name it, with its own cause; its neighbours get their verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_builders import make_contract

from harness.contract.schema import Contract
from harness.evidence.environment import Machine
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import RunEvidence
from harness.judge.registry import judge_unit
from harness.judge.verdict import Verdict
from harness.runners.plan import plan
from harness.runners.supervisor import execute
from harness.system.resolve import resolve

SYSTEM = "failing_arms:FailingArms"
STEPS = 3


def claim(name: str, candidate: str, baseline: str, control: str | None = None) -> dict[str, Any]:
    effect = {"control": control, "last": 1, "at_least": 1e-9} if control is not None else None
    return {
        "id": name,
        "kind": "trajectory_match",
        "candidate": candidate,
        "baseline": baseline,
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": STEPS, **({"training_effect": effect} if effect else {})},
    }


SOUND = claim("SOUND", "again", "plain")


@dataclass(frozen=True)
class Loaded:
    contract: Contract


def described(name: str) -> Any:
    return resolve(name).describe()


def planned(arms: dict[str, Any], *claims: dict[str, Any]) -> tuple[Contract, Run]:
    contract = make_contract(*claims, system=SYSTEM, arms=arms)
    [run] = plan([Loaded(contract)], machine=Machine(False, "no GPU", (), 8.0), describe=described).runs
    return contract, run.model_copy(update={"wall_limit_s": 200.0, "heartbeat_s": 8.0})


def judged(tmp_path: Path, arms: dict[str, Any], *claims: dict[str, Any]) -> tuple[dict[str, Verdict], RunEvidence]:
    """The verdicts by claim after a real worker, and what was seen."""
    contract, run = planned({"plain": {}, "again": {}, **arms}, *claims)
    assert execute(run, tmp_path / "run") is None
    _, evidence = read_run(tmp_path / "run")
    return {each.id: judge_unit(contract, each, "w", [evidence]) for each in contract.claims}, evidence


IN_PROCESS = {
    "raises": "ValueError: this arm is broken",
    "exits": "SystemExit: 0",
    "interrupts": "KeyboardInterrupt: ",
    "returns": "AttributeError: 'float' object has no attribute 'detach'",
    "open+raises": "ValueError: this arm is broken",
    "open+exits": "SystemExit: 0",
    "type": "TypeError: 'int' object does not support the context manager protocol",
}


@pytest.mark.parametrize("how", IN_PROCESS)
def test_an_arm_that_raises_costs_the_claims_that_name_it(tmp_path: Path, how: str) -> None:
    arms = {"bad": {"fails": how}}
    verdicts, evidence = judged(tmp_path, arms, claim("BAD", "again", "bad"), SOUND)
    assert verdicts["SOUND"].reason == "held"
    assert verdicts["BAD"].reason == "worker_exception"
    phase = "steps" if how in {"raises", "exits", "interrupts", "returns"} else "open"
    assert verdicts["BAD"].message == f"arm bad of run c+w+paired failed in phase bad.0: {phase}: {IN_PROCESS[how]}"
    assert evidence.death is None
    assert not (tmp_path / "run" / "attempt.0").exists()  # an ordinary exception needs no second worker


BY_DEATH = {
    "killed": ("worker_signal", "SIGKILL"),
    "leaves": ("worker_incomplete", "the `complete` record is missing"),
    "hangs": ("worker_heartbeat", "no progress for 8 s"),
    "open+killed": ("worker_signal", "SIGKILL"),
}


@pytest.mark.parametrize("how", BY_DEATH)
def test_an_arm_that_ends_its_process_is_left_out_of_a_second_one(tmp_path: Path, how: str) -> None:
    verdicts, evidence = judged(tmp_path, {"bad": {"fails": how}}, claim("BAD", "again", "bad"), SOUND)
    reason, detail = BY_DEATH[how]
    assert verdicts["SOUND"].reason == "held"
    assert (verdicts["BAD"].reason, evidence.failed["bad"].detail) == (reason, detail)
    assert "arm bad of run c+w+paired failed in phase bad.0: " in verdicts["BAD"].message
    assert (tmp_path / "run" / "attempt.0" / "records.jsonl").exists()  # what the first one wrote stays


def test_two_arms_that_end_their_process_cost_two_workers_more(tmp_path: Path) -> None:
    arms = {"bad": {"fails": "killed"}, "worse": {"fails": "leaves"}}
    claims = claim("BAD", "again", "bad"), claim("WORSE", "again", "worse"), SOUND
    verdicts, _ = judged(tmp_path, arms, *claims)
    assert {name: verdict.reason for name, verdict in verdicts.items()} == {
        "BAD": "worker_signal",
        "WORSE": "worker_incomplete",
        "SOUND": "held",
    }


@pytest.mark.parametrize("first", [True, False], ids=["the first arm", "the last arm"])
def test_it_does_not_matter_when_the_arm_comes(tmp_path: Path, first: bool) -> None:
    bad = claim("BAD", "again", "bad") if first else claim("BAD", "bad", "plain")
    verdicts, evidence = judged(tmp_path, {"bad": {"fails": "raises"}}, bad, SOUND)
    assert (verdicts["BAD"].reason, verdicts["SOUND"].reason) == ("worker_exception", "held")
    assert set(evidence.failed) == {"bad"}


def test_a_control_that_fails_costs_the_claims_with_that_control(tmp_path: Path) -> None:
    arms = {"untrained": {"learning_rate": 0.0, "fails": "raises"}}
    verdicts, _ = judged(tmp_path, arms, claim("BAD", "again", "plain", "untrained"), SOUND)
    assert (verdicts["BAD"].reason, verdicts["SOUND"].reason) == ("worker_exception", "held")
    assert "arm untrained of run" in verdicts["BAD"].message


def test_a_baseline_of_gradients_that_fails_costs_its_comparison(tmp_path: Path) -> None:
    gradients = {
        "id": "BAD",
        "kind": "gradient_match",
        "candidate": "again",
        "baseline": "bad",
        "steps": [0],
        "equality": "bitwise",
    }
    verdicts, _ = judged(tmp_path, {"bad": {"fails": "raises"}}, gradients, SOUND)
    assert (verdicts["BAD"].reason, verdicts["SOUND"].reason) == ("worker_exception", "held")


def test_an_arm_whose_own_system_cannot_be_imported_fails_alone(tmp_path: Path) -> None:
    verdicts, _ = judged(tmp_path, {"bad": {"system": "no_such:System"}}, claim("BAD", "again", "bad"), SOUND)
    assert (verdicts["BAD"].reason, verdicts["SOUND"].reason) == ("worker_exception", "held")
    assert "no_such:System: the system's module must be importable" in verdicts["BAD"].message


@pytest.mark.parametrize("how", ["unavailable", "open+unavailable"])
def test_what_an_arms_system_lacks_here_is_that_arms_alone(tmp_path: Path, how: str) -> None:
    verdicts, _ = judged(tmp_path, {"bad": {"fails": how}}, claim("BAD", "again", "bad"), SOUND)
    bad = verdicts["BAD"]
    assert (str(bad.status), bad.reason) == ("NOT_RUN", "not_available")
    assert bad.message == "arm bad: this arm needs a part that is not here"
    assert verdicts["SOUND"].reason == "held"


def test_an_arm_that_nothing_needs_any_more_is_not_executed(tmp_path: Path) -> None:
    arms = {"bad": {"fails": "raises"}, "alone": {}}
    _, evidence = judged(tmp_path, arms, claim("BAD", "alone", "bad"), SOUND)
    assert sorted(evidence.arms) == ["again", "bad", "plain"]


def test_a_run_whose_every_claim_names_the_dead_arm_is_not_made_again(tmp_path: Path) -> None:
    _, run = planned({"plain": {}, "bad": {"fails": "killed"}}, claim("BAD", "bad", "plain"))
    death = execute(run, tmp_path / "run")
    assert death is not None
    assert (death.cause, death.phase) == ("signal", "bad.0: steps")
    assert not (tmp_path / "run" / "attempt.0").exists()
