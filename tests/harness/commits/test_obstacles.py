"""What of a claim cannot be compared between two commits, and a system that another commit has otherwise, or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from run_builders import make_contract
from two_commits import TRAINER, UPDATE, UserRepository

from harness.api import session
from harness.commits.checkout import checked_out
from harness.contract.load import load_contracts
from harness.evidence.base import Obstacle
from harness.evidence.plan_records import Run
from harness.execution.sharing import awaits, lanes
from harness.kinds import probe_named
from harness.planning.obstacles import Baseline, commit_obstacle
from harness.planning.run_builder import RunBuilder
from harness.system.protocol import SystemDescription

COMMIT = "c0ffee" * 6 + "beef"
ACCEPTED = "acce" * 10
ARMS: dict[str, object] = {"here": {}, "main": {}, "untrained": {"learning_rate": 0.0}}
SAME = {
    "id": "SAME",
    "kind": "trajectory_match",
    "candidate": "here",
    "baseline": "main",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": 3, "training_effect": {"control": "untrained", "last": 1, "at_least": 1e-9}},
}
GRADIENTS = {**{name: SAME[name] for name in ("candidate", "baseline", "equality")}, "kind": "gradient_match"}


def runs_of(*claims: dict[str, object], arms: dict[str, object] = ARMS) -> Sequence[Run]:
    contract = make_contract(*claims, arms=arms)
    builder = RunBuilder(contract, next(iter(contract.workloads)), None, None, None, COMMIT)
    for claim in contract.claims:
        builder.add(claim, 0, claim)
    return builder.runs()


def commits_of(run: Run) -> dict[str, str | None]:
    return {name: planned.commit for name, planned in run.arms.items()}


def test_only_baseline_arms_run_from_the_baseline_commit() -> None:
    [run] = runs_of(SAME)
    assert commits_of(run) == {"main": COMMIT, "here": None, "untrained": None}


def test_an_arm_used_as_baseline_and_as_candidate_has_a_run_for_each() -> None:
    turned = {**SAME, "id": "TURNED", "candidate": "main", "baseline": "here"}
    first, second = runs_of(SAME, turned)
    assert (commits_of(first)["main"], commits_of(first)["here"]) == (COMMIT, None)
    assert (commits_of(second)["main"], commits_of(second)["here"]) == (None, COMMIT)


def test_baselines_of_different_commits_do_not_share_a_run() -> None:
    contract = make_contract(SAME, {**SAME, "id": "OTHER"}, arms=ARMS)
    builder = RunBuilder(
        contract, next(iter(contract.workloads)), None, None, None, COMMIT, accepted={"SAME": ACCEPTED}
    )
    for claim in contract.claims:
        builder.add(claim, 0, claim)
    assert [commits_of(run)["main"] for run in builder.runs()] == [ACCEPTED, COMMIT]


def test_each_process_has_arms_of_one_commit_and_compared_arms_wait_for_the_baseline() -> None:
    [run] = runs_of(SAME, {**GRADIENTS, "id": "GRADIENTS", "steps": [0]})
    baseline, repetition, others = lanes(run)
    assert (list(baseline.arms), list(repetition.arms)) == (["main"], ["main"])
    assert list(others.arms) == ["here", "untrained"]
    assert (awaits(others, baseline), awaits(baseline, others)) == (True, False)


def test_an_arm_judged_by_digests_does_not_wait_for_its_baseline() -> None:
    [run] = runs_of(SAME)
    baseline, _, others = lanes(run)
    assert not awaits(others, baseline)


def obstacle(repository: UserRepository) -> Obstacle:
    """Why the one claim of the repository's contract is not run against `main`."""
    options, system = session.VerifyOptions(baseline="main"), f"{repository.package}trainer:Trainer"
    with checked_out("main", [system], Path("harness-reports")) as checkout:
        [unit] = session.plan_contracts(load_contracts([repository.root]), options, checkout).units
    assert unit.obstacle is not None
    assert unit.runs == []
    return unit.obstacle


def test_an_arm_setting_unknown_to_the_baseline_commit_prevents_the_unit_from_running(
    repository: UserRepository,
) -> None:
    trainer = repository.folder / "trainer.py"
    trainer.write_text(
        trainer.read_text().replace("    def build", "    arm_options = {'rank': int}\n    def build", 1)
    )
    contract = repository.root / "as-main.yaml"
    contract.write_text(contract.read_text().replace("main: {}", "main: {rank: 4}"))
    found = obstacle(repository)
    head = repository.git("rev-parse", "HEAD")[:12]
    assert found.reason == "capability_missing"
    said = f"arm main: step function at {head} has no setting `rank`; use one of: "
    assert found.message.startswith(said)
    assert "learning_rate" in found.message.removeprefix(said)


def test_a_module_missing_at_the_baseline_commit_prevents_the_unit_from_running(repository: UserRepository) -> None:
    repository.git("rm", "--quiet", "trainer.py")
    repository.commit("No trainer yet")
    repository.write("trainer.py", TRAINER.format(package=""))
    found = obstacle(repository)
    assert found.reason == "system_not_described"
    assert f"arm main, at {repository.git('rev-parse', 'HEAD')[:12]}: trainer:Trainer" in found.message
    assert "No module named 'trainer'" in found.message


def test_a_module_of_the_working_tree_imported_by_the_baseline_prevents_the_unit_from_running(
    repository: UserRepository,
) -> None:
    line = f"import sys; sys.path.insert(0, {str(repository.root)!r}); import helper\n"
    repository.write("trainer.py", line + TRAINER.format(package=""))
    repository.write("helper.py", "")
    repository.commit("A path of its own")
    found = obstacle(repository)
    assert found.reason == "system_not_described"
    assert "a system and everything that it imports from its repository must come from" in found.message
    assert "found `helper` of the working tree (helper.py)" in found.message


def test_a_commit_whose_import_fails_is_reported_with_the_failing_line(repository: UserRepository) -> None:
    repository.write("update.py", "\n1 / 0\n")
    repository.commit("Broken")
    repository.write("update.py", UPDATE)
    assert "ZeroDivisionError: division by zero (update.py:2)" in obstacle(repository).message


def described(**changes: object) -> Baseline:
    values = {"capabilities": frozenset({"parameters", "inputs"}), "captures": frozenset({"none"}), **changes}
    described = SystemDescription(name="toy", summary="", models=(), arm_options={}, workload_options={}, **values)  # type: ignore[arg-type]
    return Baseline(COMMIT, {"toy:Toy": described})


def test_a_capability_missing_at_the_baseline_commit_prevents_the_unit_from_running_and_is_named() -> None:
    contract = make_contract(SAME, system="toy:Toy", arms=ARMS)
    [claim] = contract.claims
    assert commit_obstacle(contract, claim, described()) is None
    lacking = commit_obstacle(contract, claim, described(capabilities=frozenset({"inputs"})))
    assert lacking is not None
    assert (
        lacking.message
        == f"arm main: toy at {COMMIT[:12]} lacks the capability `parameters` that trajectory_match needs"
    )
    warm = {**ARMS, "main": {"capture": "step", "warm_steps": 1}}
    contract = make_contract(SAME, system="toy:Toy", arms=warm)
    lacking = commit_obstacle(contract, contract.claims[0], described(captures=frozenset({"none", "step"})))
    assert lacking is not None
    assert lacking.message == (
        f"arm main: toy at {COMMIT[:12]} lacks the capability `warm_steps`; remove `warm_steps` from the arm"
    )


def test_a_kind_that_needs_both_arms_in_one_process_refuses_two_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    one_process = replace(probe_named("paired"), arm_by_arm=False)
    monkeypatch.setattr("harness.planning.obstacles.probe_of", lambda _: one_process)
    contract = make_contract(SAME, system="toy:Toy", arms=ARMS)
    found = commit_obstacle(contract, contract.claims[0], described())
    assert found is not None
    assert found.reason == "one_commit_a_process"
    assert found.message.startswith("trajectory_match executes its arms in one process")


def test_a_claim_without_a_baseline_can_run_when_two_commits_are_compared() -> None:
    again = {**SAME, "kind": "repeatability", "guards": {"steps": 3}}
    del again["baseline"]
    contract = make_contract(again, system="toy:Toy", arms=ARMS)
    assert commit_obstacle(contract, contract.claims[0], Baseline(COMMIT, {})) is None
