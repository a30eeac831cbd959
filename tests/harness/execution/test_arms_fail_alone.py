"""An arm that fails costs the claims that name it, with its own cause; its neighbours get their verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import failing_arms
import pytest
from limits_passed import clock_of_limits
from run_builders import make_contract

from harness.contract.schema import Contract
from harness.devices.environment import Machine
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import RunEvidence
from harness.execution.supervisor import execute
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.planning.plan import plan
from harness.system.resolve import resolve

pytestmark = pytest.mark.usefixtures("warm", "ends_alone")

SYSTEM = "failing_arms:FailingArms"
STEPS = 3
HEARTBEAT_S = 60.0


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


def described(_: str) -> Any:
    """Of every system: what cannot be described here has no run, and one may be missing where the worker is alone."""
    return resolve(SYSTEM).describe()


def planned(arms: dict[str, Any], *claims: dict[str, Any]) -> tuple[Contract, Run]:
    contract = make_contract(*claims, system=SYSTEM, arms=arms)
    [run] = plan([Loaded(contract)], machine=Machine(False, "no GPU", (), 8.0), describe=described).runs
    return contract, run.model_copy(update={"wall_limit_s": 200.0, "heartbeat_s": HEARTBEAT_S})


@dataclass(frozen=True)
class Outcome:
    """One run in real workers: verdicts by claim, what was seen, and where it lies."""

    verdicts: dict[str, Verdict]
    evidence: RunEvidence
    directory: Path


def judged(directory: Path, arms: dict[str, Any], *claims: dict[str, Any]) -> Outcome:
    contract, run = planned({"plain": {}, "again": {}, **arms}, *claims, SOUND)
    assert execute(run, directory) is None
    _, evidence = read_run(directory)
    verdicts = {each.id: judge_unit(contract, each, "w", [evidence]) for each in contract.claims}
    return Outcome(verdicts, evidence, directory)


# Each with the line of the failing system that the message names.
IN_PROCESS = {
    "raises": ('raise ValueError("this arm is broken")', "ValueError: this arm is broken"),
    "exits": ("raise SystemExit(0)", "SystemExit: 0"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "returns": (
        "def step(self, index: int) -> Tensor:",
        (
            "step(index) must return the loss: a floating-point tensor with one element; found a float; return the "
            "tensor "
            "itself, because `.item()`, float() and `.numpy()` wait for the device in every step"
        ),
    ),
    "open+raises": ('raise ValueError("this arm is broken")', "ValueError: this arm is broken"),
    "open+exits": ("raise SystemExit(0)", "SystemExit: 0"),
    "type": (
        "def open(self, workload: Workload, arm: Arm, **options: Any) -> TrainingRun:",
        (
            "open() must return a training run: a context manager with the methods step(index) and facts(); found the "
            "int 3 without `step`, `facts`, `__enter__`, `__exit__`; see `TrainingRun` in harness/system/protocol.py"
        ),
    ),
}
UNAVAILABLE = ("unavailable", "open+unavailable")
GRADIENTS = {
    "id": "GRADIENTS",
    "kind": "gradient_match",
    "candidate": "again",
    "baseline": "of_gradients",
    "steps": [0],
    "equality": "bitwise",
}


def arm_of(how: str) -> str:
    """The arm that fails so; its claim is called the same."""
    return how.replace("+", "_")


@pytest.fixture(scope="module")
def raising(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Every way to fail that leaves the process alive, an arm each, one after the other in one worker."""
    arms: dict[str, Any] = {arm_of(how): {"fails": how} for how in (*IN_PROCESS, *UNAVAILABLE)}
    arms |= {
        "last": {"fails": "raises"},
        "untrained": {"learning_rate": 0.0, "fails": "raises"},
        "of_gradients": {"fails": "raises"},
        "nowhere": {"system": "no_such:System"},
        "alone": {},
    }
    return judged(
        tmp_path_factory.mktemp("raising") / "run",
        arms,
        *(claim(arm_of(how), "again", arm_of(how)) for how in (*IN_PROCESS, *UNAVAILABLE)),
        claim("LAST", "last", "plain"),
        claim("CONTROL", "again", "plain", "untrained"),
        claim("NOWHERE", "again", "nowhere"),
        claim("ALONE", "alone", "raises"),
        GRADIENTS,
    )


def test_claims_about_other_arms_are_judged_when_an_arm_raises(raising: Outcome) -> None:
    assert raising.verdicts["SOUND"].reason == "held"
    assert raising.evidence.death is None
    assert not (raising.directory / "attempt.0").exists()  # an ordinary exception needs no second worker


@pytest.mark.parametrize("how", IN_PROCESS)
def test_an_arm_that_raises_fails_only_the_claims_that_name_it(raising: Outcome, how: str) -> None:
    arm = arm_of(how)
    verdict = raising.verdicts[arm]
    assert verdict.reason == "worker_exception"
    phase = "steps" if how in {"raises", "exits", "interrupts", "returns"} else "open"
    code, cause = IN_PROCESS[how]
    lines = Path(failing_arms.__file__).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if text.strip() == code)
    raised = f" in misbehave `{code}`" if code.startswith("raise ") else ""
    where = f"failed in phase {arm}.0: {phase}: failing_arms.py:{line}{raised}"
    assert verdict.message == f"arm {arm} of run c+w+paired {where}: {cause}"


@pytest.mark.parametrize(("name", "arm"), [("raises", "raises"), ("LAST", "last")], ids=["the first arm", "the last"])
def test_an_arm_that_raises_fails_its_claim_whether_first_or_last(raising: Outcome, name: str, arm: str) -> None:
    """Baselines are executed first, so one arm fails before the candidate of its claim and one after its baseline."""
    assert raising.verdicts[name].reason == "worker_exception"
    assert raising.evidence.failed[arm].phase == f"{arm}.0: steps"


def test_only_arms_with_a_planted_failure_fail_in_a_run_with_many_arms(raising: Outcome) -> None:
    whose = {arm_of(how) for how in (*IN_PROCESS, *UNAVAILABLE)} | {"last", "untrained", "of_gradients", "nowhere"}
    assert set(raising.evidence.failed) == whose


def test_a_failing_control_arm_fails_only_the_claims_with_that_control(raising: Outcome) -> None:
    assert raising.verdicts["CONTROL"].reason == "worker_exception"
    assert "arm untrained of run" in raising.verdicts["CONTROL"].message


def test_a_failing_gradient_baseline_fails_its_comparison(raising: Outcome) -> None:
    assert raising.verdicts["GRADIENTS"].reason == "worker_exception"
    assert "arm of_gradients of run" in raising.verdicts["GRADIENTS"].message


def test_an_arm_whose_own_system_cannot_be_imported_fails_alone(raising: Outcome) -> None:
    verdict = raising.verdicts["NOWHERE"]
    assert verdict.reason == "worker_exception"
    assert "no_such:System: the system's module must be importable" in verdict.message


@pytest.mark.parametrize("how", UNAVAILABLE)
def test_a_missing_part_of_an_arms_system_leaves_only_that_arms_claim_not_run(raising: Outcome, how: str) -> None:
    verdict = raising.verdicts[arm_of(how)]
    assert (str(verdict.status), verdict.reason) == ("NOT_RUN", "not_available")
    assert verdict.message == f"arm {arm_of(how)}: this arm needs a part that is not here"


def test_an_arm_needed_only_by_failed_claims_is_not_executed(raising: Outcome) -> None:
    """The arm `alone` is compared only with a baseline that has failed before."""
    failed = set(raising.evidence.failed)
    assert set(raising.evidence.arms) - failed == {"again", "plain"}


BY_DEATH = {
    "killed": ("worker_signal", "SIGKILL"),
    "leaves": ("worker_incomplete", "the `complete` record is missing"),
    "hangs": ("worker_heartbeat", "no progress for 60 s"),
    "open+killed": ("worker_signal", "SIGKILL"),
}


@pytest.mark.parametrize("both", [("killed", "leaves"), ("hangs", "open+killed")], ids="+".join)
def test_each_of_two_arms_that_end_their_process_needs_an_additional_worker(
    tmp_path: Path, both: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of_limits(tmp_path, "hangs.0: steps", HEARTBEAT_S)
    monkeypatch.setattr("harness.execution.watched_worker.time", clock)
    arms = {arm_of(how): {"fails": how} for how in both}
    seen = judged(tmp_path / "run", arms, *(claim(arm_of(how), "again", arm_of(how)) for how in both))
    assert seen.verdicts["SOUND"].reason == "held"
    for how in both:
        arm, verdict = arm_of(how), seen.verdicts[arm_of(how)]
        assert (verdict.reason, seen.evidence.failed[arm].detail) == BY_DEATH[how]
        assert f"arm {arm} of run c+w+paired failed in phase {arm}.0: " in verdict.message
    # what the first workers wrote stays
    assert sorted(path.parent.name for path in tmp_path.glob("run/attempt.*/records.jsonl")) == [
        "attempt.0",
        "attempt.1",
    ]


def test_each_of_two_failed_arms_keeps_its_own_cause_of_failure(tmp_path: Path) -> None:
    """One arm raises an exception and one is killed, and each is compared with the arm `plain`."""
    arms = {"plain": {}, "raises": {"fails": "raises"}, "killed": {"fails": "killed"}}
    contract, run = planned(arms, claim("RAISES", "raises", "plain"), claim("KILLED", "killed", "plain"))
    assert execute(run, tmp_path / "run") is None
    _, evidence = read_run(tmp_path / "run")
    raised, killed = (judge_unit(contract, each, "w", [evidence]) for each in contract.claims)
    assert (raised.reason, killed.reason) == ("worker_exception", "worker_signal")
    assert "ValueError: this arm is broken" in raised.message
    assert killed.message == "arm killed of run c+w+paired failed in phase killed.0: steps: SIGKILL"


def test_a_run_is_not_repeated_if_every_claim_names_the_dead_arm(tmp_path: Path) -> None:
    _, run = planned({"plain": {}, "bad": {"fails": "killed"}}, claim("BAD", "bad", "plain"))
    death = execute(run, tmp_path / "run")
    assert death is not None
    assert (death.cause, death.phase) == ("signal", "bad.0: steps")
    assert not (tmp_path / "run" / "attempt.0").exists()


def test_a_recorded_death_is_kept_when_a_later_worker_removes_the_directory(tmp_path: Path) -> None:
    arms = {"killed": {"fails": "killed"}, "removes": {"fails": "removes"}}
    seen = judged(tmp_path / "run", arms, claim("killed", "killed", "plain"), claim("removes", "removes", "plain"))
    assert seen.verdicts["SOUND"].reason == "held"
    assert (seen.verdicts["killed"].reason, seen.evidence.failed["killed"].detail) == BY_DEATH["killed"]
    assert seen.evidence.failed["removes"].detail == "the directory of the run was nothing when its worker ended"
