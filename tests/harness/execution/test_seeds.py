"""Claims over several seeds and on another metric: right ones hold when they are executed, faulty ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from claims_in_process import contract_of, judged, judged_on

from harness.evidence.read_run import read_run

SYSTEM = "measured_systems:Measured"
STEPS = 9
NOT_WORSE: dict[str, Any] = {
    "id": "SEEDS",
    "title": "t",
    "kind": "not_worse",
    "candidate": "captured",
    "baseline": "plain",
    "direction": "lower_is_better",
    "last": 4,
    "margin": 0.05,
    "seeds": [3, 1, 4, 0, 5],
    "guards": {"steps": STEPS, "distinct_batches": STEPS},
    "judged_on": ["w"],
    "why": "w",
    "if_fails": "f",
    "falsified_by": [],
}
CONTROL = {"training_effect": {"control": "untrained", "last": 4, "at_least": 0.05}}
WITH_CONTROL = {"guards": NOT_WORSE["guards"] | CONTROL}  # a third arm to train
TRAJECTORY: dict[str, Any] = {
    **{
        name: NOT_WORSE[name]
        for name in ("id", "title", "candidate", "baseline", "guards", "judged_on", "why", "if_fails")
    },
    "kind": "trajectory_match",
    "metric": "largest_weight",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
}
RELATIVE = {"equality": "within", "max_abs_difference": None, "max_relative_difference": 1e-3}


def test_every_arm_trains_with_every_seed_in_its_order(tmp_path: Path) -> None:
    verdict = judged(SYSTEM, tmp_path, NOT_WORSE | WITH_CONTROL, steps=STEPS)
    assert verdict.reason == "held", verdict.message
    assert verdict.denominators["seeds"] == 5
    assert verdict.figures["worse_by"].value == 0.0  # captured as plain, bit for bit
    [directory] = tmp_path.iterdir()
    run, evidence = read_run(directory)
    assert list(run.arms) == ["untrained", "plain", "captured"]
    assert {arm: [each.start.facts["seed"] for each in found] for arm, found in evidence.arms.items()} == dict.fromkeys(
        run.arms, NOT_WORSE["seeds"]
    )
    starts = {arm: [each.start.trainable_digest for each in found] for arm, found in evidence.arms.items()}
    assert starts["captured"] == starts["plain"]
    assert len(set(starts["plain"])) == 5
    assert [each.capture is not None for each in evidence.arms["captured"]] == [True] * 5


@pytest.mark.parametrize(
    ("fault", "more", "reason"),
    [
        ("ascending", {}, "worse"),
        ("unsteady_loss", {}, "worse"),
        ("nan_tail", {}, "non_finite"),
        ("nan_end_state", {}, "non_finite_end"),
        ("constant_loss", {}, "vacuous_constant_loss"),
        ("flat_loss", WITH_CONTROL, "vacuous_training_effect"),
        ("one_batch", {}, "vacuous_batches_repeat"),
    ],
)
def test_a_planted_fault_fails_a_not_worse_claim_about_the_loss(
    fault: str, more: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    verdict = judged(SYSTEM, tmp_path, NOT_WORSE | {"candidate": "again"} | more, fault=fault, steps=STEPS)
    assert verdict.reason == reason, verdict.message


@pytest.mark.parametrize(
    ("fault", "direction", "reason"),
    [
        (None, "lower_is_better", "held"),
        ("doubled_metric", "lower_is_better", "worse"),
        ("halved_metric", "higher_is_better", "worse"),
        ("nan_metric", "lower_is_better", "non_finite"),
        ("constant_metric", "lower_is_better", "vacuous_constant_metric"),
    ],
)
def test_a_planted_fault_fails_a_not_worse_claim_about_a_custom_metric(
    fault: str | None, direction: str, reason: str, tmp_path: Path
) -> None:
    claim = {**NOT_WORSE, "candidate": "again", "metric": "largest_weight", "direction": direction}
    verdict = judged(SYSTEM, tmp_path, claim, fault=fault, steps=STEPS)
    assert verdict.reason == reason, verdict.message


@pytest.mark.parametrize(
    ("fault", "claim", "reason"),
    [
        ("nan_metric", {}, "non_finite"),
        ("constant_metric", {}, "vacuous_constant_metric"),
        ("doubled_metric", {}, "differs"),
        ("halved_metric", RELATIVE, "exceeds_tolerance"),
        ("shifted_metric", {"equality": "within"}, "exceeds_tolerance"),
        ("unsteady_loss", {**RELATIVE, "metric": "loss"}, "exceeds_tolerance"),
    ],
)
def test_a_planted_fault_in_a_metric_of_a_captured_step_is_found(
    fault: str, claim: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    verdict = judged(SYSTEM, tmp_path, TRAJECTORY | claim, fault=fault, steps=STEPS)
    assert verdict.reason == reason, verdict.message
    if reason == "exceeds_tolerance" and claim.get("max_relative_difference"):
        assert verdict.figures["exceeded_bound"].value == "max_relative_difference"


def test_a_metric_of_a_captured_step_is_compared(tmp_path: Path) -> None:
    beside = [TRAJECTORY | RELATIVE, TRAJECTORY | {"metric": "accuracy"}]
    verdicts = judged_on(contract_of(SYSTEM, TRAJECTORY, steps=STEPS, beside=beside), tmp_path)
    assert [verdict.reason for verdict in verdicts] == ["held", "held", "capability_missing"]
    assert verdicts[2].message == (
        "the system of arm captured reports no metric `accuracy`; it reports `loss`, `largest_weight`"
    )
