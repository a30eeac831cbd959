"""What no replay computed is seen once an arm has ended: a capture claim about it does not hold; honest steps hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from claims_in_process import CLAIM, contract_of, executed, judged, planned_of

from harness.execution import arm as arm_module
from harness.execution.watchers import ghost_replay
from harness.execution.watchers.reductions import digests
from harness.judging.verdict import Verdict

CAPTURE: dict[str, Any] = {
    **{name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on", "candidate")},
    "kind": "capture",
    "mechanism": "traced",
    "captures": 1,
}
# honest, with the update next to the replays
OUTSIDE = ["OneBatch", "StaticResults", "StaticResultsOnOneBatch", "Unrepeatable", "EagerAndScheduled"]


def verdict_on(system: str, directory: Path, fault: str | None = None, **claim: Any) -> Verdict:
    return judged(system, directory, CAPTURE | claim, fault=fault)


@pytest.mark.parametrize("name", ["Whole", "EagerUpdate", "RefusesMore", "EndsTheProcess", *OUTSIDE])
def test_a_correct_capture_made_by_the_system_itself_passes(name: str, tmp_path: Path) -> None:
    assert verdict_on(f"ghost_systems:{name}", tmp_path / "run").reason == "held"


@pytest.mark.parametrize("name", ["Idle", "Playback", "OneBatchCaptured", "IdleOnOneBatch", "IdleAndScheduled"])
def test_step_outputs_that_no_replay_computed_fail_the_claim(name: str, tmp_path: Path) -> None:
    assert verdict_on(f"ghost_systems:{name}", tmp_path / "run").reason == "output_not_from_replay"


@pytest.mark.parametrize("name", ["HiddenTrainer", "CopiesThrough", "IdleAndOver", "UpdateOnOneBatch"])
def test_losses_that_no_replay_is_proven_to_compute_are_undecided(name: str, tmp_path: Path) -> None:
    assert verdict_on(f"ghost_systems:{name}", tmp_path / "run").reason == "replay_unproven"


def test_a_training_with_an_idle_graph_is_not_captured(tmp_path: Path) -> None:
    verdict = judged("ghost_systems:Idle", tmp_path / "run", CLAIM | {"mechanism": "traced", "guards": {"steps": 12}})
    assert verdict.reason == "candidate_not_captured"


@pytest.mark.parametrize("system", ["step_function_systems:Regression", "ghost_systems:EagerUpdate"])
def test_the_remembered_step_fault_is_found_in_any_system(system: str, tmp_path: Path) -> None:
    assert verdict_on(system, tmp_path / "run", "remembered_step").reason == "output_not_from_replay"


def test_a_nan_state_is_not_mistaken_for_outputs_that_no_replay_computed(tmp_path: Path) -> None:
    """With NaN parameters every loss is NaN, so equal losses do not show that no replay computes the loss."""
    assert verdict_on("step_function_systems:Regression", tmp_path / "run", "nan_end_state").reason == "non_finite_end"


def test_the_ghost_replay_is_not_counted_in_the_arms_steps_and_replays(tmp_path: Path) -> None:
    """The ghost replay is a test after the training. It takes steps, which must not count as steps of the arm."""
    [run] = planned_of(contract_of("ghost_systems:Whole", CAPTURE)).runs
    [arm] = executed(run, tmp_path / run.id).arms["captured"]
    assert arm.capture is not None
    assert arm.end is not None
    assert arm.capture.ghost is not None
    assert (arm.capture.replays, arm.end.steps_called, arm.end.replays) == (12, 12, 12)


def test_a_step_that_needs_a_batch_beyond_the_last_ends_the_ghost_replay(tmp_path: Path) -> None:
    """The ghost replay is a test after the training. It runs replays without the step, and the step without replays."""
    [run] = planned_of(contract_of("ghost_systems:WaitsForMore", CAPTURE)).runs
    [arm] = executed(run.model_copy(update={"heartbeat_s": 2.0}), tmp_path / run.id).arms["captured"]
    assert arm.capture is not None
    assert arm.capture.ghost is not None
    assert str(arm.capture.ghost.failure).endswith(
        "SilentError: an extra step, made after the training to test its replays, took longer than 1 s"
    )


def execute_one(name: str, directory: Path) -> None:
    [run] = planned_of(contract_of(f"ghost_systems:{name}", CAPTURE)).runs
    executed(run, directory / run.id)


@pytest.mark.parametrize("name", ["Whole", "EagerUpdate", "RefusesMore"])
def test_the_ghost_replay_restores_all_parameters(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ghost replay is a test after the training. It runs replays without the step, and the step without replays."""
    look, seen = ghost_replay.ghost_replay, list[dict[str, str]]()

    def between(training: Any, *given: Any) -> Any:
        seen.append(digests(training.parameters()))
        found = look(training, *given)
        seen.append(digests(training.parameters()))
        return found

    monkeypatch.setattr(arm_module, "ghost_replay", between)
    execute_one(name, tmp_path)
    [before, after] = seen
    assert before == after


def test_the_ghost_replay_sends_a_heartbeat_after_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ghost replay is a test after the training. It runs replays without the step, and the step without replays."""
    look, moments = ghost_replay.ghost_replay, list[str]()

    def noted(training: Any, attempts: Any, last: int, others: list[int], *_alive: Any) -> Any:
        once_more = training.once_more

        def step(index: int) -> Any:
            moments.append("step")
            return once_more(index)

        training.once_more = step
        return look(training, attempts, last, others, lambda: moments.append("alive"))

    monkeypatch.setattr(arm_module, "ghost_replay", noted)
    execute_one("EagerUpdate", tmp_path)
    assert [moments[at + 1] for at, each in enumerate(moments) if each == "step"] == ["alive"] * moments.count("step")
    assert "step" in moments


def test_captures_are_counted_before_the_ghost_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ghost replay is a test after the training. It runs replays without the step, and the step without replays."""
    called = list[str]()

    def noting(name: str) -> Any:
        function = getattr(arm_module, name)

        def noted(*given: Any) -> Any:
            called.append(name)
            return function(*given)

        return noted

    for name in ("capture_evidence", "ghost_replay"):
        monkeypatch.setattr(arm_module, name, noting(name))
    execute_one("Whole", tmp_path)
    assert called == ["capture_evidence", "ghost_replay"]


@pytest.mark.parametrize(
    ("name", "reason", "declared"),
    [
        ("AveragesLess", "held", {}),
        ("Averages", "work_after_step", {}),
        ("Averages", "held", {"outside_operations_at_most": 70}),
        ("Averages", "work_after_step", {"outside_operations_at_most": 63}),
        ("AveragesInItsStep", "work_outside_graphs", {}),
        ("AveragesInItsStep", "work_outside_graphs", {"outside_operations_at_most": 1000}),
        ("TrainsAfterwards", "work_after_step", {}),
        ("TrainsAfterwards", "work_after_step", {"outside_operations_at_most": 1000}),
    ],
)
def test_device_work_after_a_step_needs_a_declared_limit_and_may_not_train(
    name: str, reason: str, declared: Mapping[str, Any], tmp_path: Path
) -> None:
    """After each step, one system updates parameters, and another averages 4 tensors 16 times (64 operations)."""
    verdict = verdict_on(f"ghost_systems:{name}", tmp_path / "run", **declared)
    assert verdict.reason == reason, verdict.message
    trains = "nothing shows that the replays alone train" if name == "TrainsAfterwards" else "issued 64 operations"
    assert reason != "work_after_step" or trains in verdict.message
