"""What no replay computed is seen once an arm has ended: a capture claim about it does not hold; honest steps hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from claims_in_process import CLAIM, contract_of, executed, judged, planned_of

from harness.judging.verdict import Verdict

CAPTURE: dict[str, Any] = {
    **{name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on", "candidate")},
    "kind": "capture",
    "mechanism": "traced",
    "captures": 1,
}


def verdict_on(system: str, directory: Path, fault: str | None = None, **claim: Any) -> Verdict:
    return judged(system, directory, CAPTURE | claim, fault=fault)


@pytest.mark.parametrize("name", ["Whole", "EagerUpdate", "RefusesMore"])
def test_an_honest_capture_of_its_own_holds(name: str, tmp_path: Path) -> None:
    assert verdict_on(f"ghost_systems:{name}", tmp_path / "run").reason == "held"


@pytest.mark.parametrize("name", ["Idle", "Playback", "OneBatchCaptured"])
def test_outputs_that_no_replay_computed_fail(name: str, tmp_path: Path) -> None:
    assert verdict_on(f"ghost_systems:{name}", tmp_path / "run").reason == "output_not_from_replay"


@pytest.mark.parametrize("name", ["HiddenTrainer", "CopiesThrough", "IdleAndOver"])
def test_what_cannot_be_seen_to_come_from_replays_is_undecided(name: str, tmp_path: Path) -> None:
    assert verdict_on(f"ghost_systems:{name}", tmp_path / "run").reason == "replay_unproven"


def test_a_trajectory_of_a_decoy_is_no_captured_one(tmp_path: Path) -> None:
    verdict = judged("ghost_systems:Idle", tmp_path / "run", CLAIM | {"mechanism": "traced", "guards": {"steps": 12}})
    assert verdict.reason == "candidate_not_captured"


@pytest.mark.parametrize("system", ["step_function_systems:Regression", "ghost_systems:EagerUpdate"])
def test_the_fault_of_a_remembered_step_is_seen_in_any_system(system: str, tmp_path: Path) -> None:
    assert verdict_on(system, tmp_path / "run", "remembered_step").reason == "output_not_from_replay"


def test_the_look_leaves_nothing_in_what_is_recorded_of_the_arm(tmp_path: Path) -> None:
    """Its steps and replays are none of the arm's, though they are made by it."""
    [run] = planned_of(contract_of("ghost_systems:Whole", CAPTURE)).runs
    [arm] = executed(run, tmp_path / run.id).arms["captured"]
    assert arm.capture is not None
    assert arm.end is not None
    assert arm.capture.ghost is not None
    assert (arm.capture.replays, arm.end.steps_called, arm.end.replays) == (12, 12, 12)
