"""A claim on several workloads may demand another training effect of each."""

from __future__ import annotations

from harness.contract.kinds.training import TrainingEffect, TrajectoryMatch


def trajectory() -> TrajectoryMatch:
    effect = {"control": "untrained", "last": 2, "at_least": 0.2, "at_least_on": {"big": 3.0}}
    return TrajectoryMatch.model_validate(
        {
            "kind": "trajectory_match",
            "candidate": "graphed",
            "baseline": "ungraphed",
            "equality": "bitwise",
            "max_abs_difference": 0.1,
            "guards": {"steps": 10, "training_effect": effect},
        }
    )


def demanded(workload: str) -> float:
    part = trajectory().on_workload(workload)
    assert isinstance(part, TrajectoryMatch)
    assert isinstance(part.guards.training_effect, TrainingEffect)
    return part.guards.training_effect.at_least


def test_the_named_workload_has_its_own_effect() -> None:
    assert demanded("big") == 3.0


def test_other_workloads_have_the_claims_effect() -> None:
    assert demanded("small") == 0.2
