"""Evaluation between steps: a right one leaves training alone, and each that does not fails for its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from between_steps import EVERY, STEPS, evaluated

from harness.drill.faults import is_killed
from harness.evidence.arm_records import Evaluated
from harness.evidence.run_evidence import parsed
from harness.system.wrappers import HARNESS_FAULTS


@pytest.mark.parametrize("arm", ["plain", "captured"])
def test_an_arm_is_evaluated_after_every_third_step(tmp_path: Path, arm: str) -> None:
    verdict = evaluated("Right", tmp_path, candidate=arm)
    assert verdict.reason == "held", verdict.message
    [path] = tmp_path.glob("*/records.jsonl")
    records = [parsed(line) for line in path.read_text().splitlines()]
    found = [record for record in records if isinstance(record, Evaluated)]
    assert [each.steps for each in found] == list(range(EVERY, STEPS + 1, EVERY))
    assert {(each.replica, *each.values) for each in found} == {(1, "loss")}


WRONG = {
    "StaysInEvalMode": ("differs", "first_differing_step", EVERY),
    "EvaluatesInTrainMode": ("evaluation_changed_state", "changed", "buffers, generators"),
    "UpdatesStatistics": ("evaluation_changed_state", "changed", "buffers"),
    "DrawsItsBatch": ("evaluation_changed_state", "changed", "generators"),
    "TakesTrainingBatches": ("unequal_batches", "first_unequal_step", EVERY),
    "LeavesGradients": ("differs", "first_differing_step", EVERY + 1),  # the loss of step 3 is from before its update
    "ReturnsNothing": ("vacuous_evaluations", "evaluations_showing_something", 0),
    "ComputesOnce": ("vacuous_evaluations", "evaluations_showing_something", 1),
    "DividesByNothing": ("evaluation_not_finite", "first_non_finite_evaluation", EVERY),
}


@pytest.mark.parametrize("system", WRONG)
def test_an_evaluation_that_changes_the_training_fails_with_its_reason(tmp_path: Path, system: str) -> None:
    verdict = evaluated(system, tmp_path)
    reason, figure, value = WRONG[system]
    assert (str(verdict.status), verdict.reason) == ("FAIL", reason), verdict.message
    assert verdict.figures[figure].value == value


def test_an_evaluation_of_an_average_passes_without_a_plain_arm(tmp_path: Path) -> None:
    alone = evaluated("EvaluatesItsAverage", tmp_path, candidate="captured")
    assert alone.reason == "held", "it changes nothing, and returns something new"


@pytest.mark.parametrize(("system", "reason"), [("Right", "held"), ("EvaluatesItsAverage", "evaluations_differ")])
def test_evaluations_of_a_candidate_must_equal_those_of_the_plain_arm(tmp_path: Path, system: str, reason: str) -> None:
    verdict = evaluated(system, tmp_path, candidate="captured", plain="plain", max_relative_difference=1e-6)
    assert verdict.reason == reason, verdict.message
    apart = verdict.figures["evaluated_relative_difference"].value
    assert isinstance(apart, float)
    assert (apart == 0) is (reason == "held")


@pytest.mark.parametrize("fault", [name for name, each in HARNESS_FAULTS.items() if "evaluation" in each.breaks])
def test_every_planted_evaluation_fault_fails_with_its_expected_reason(tmp_path: Path, fault: str) -> None:
    beside = {"candidate": "captured", "plain": "plain", "max_relative_difference": 0.01}
    verdict = evaluated("Right", tmp_path, fault=fault, **(beside if fault == "other_evaluation" else {}))
    assert is_killed(HARNESS_FAULTS[fault].breaks["evaluation"], verdict), (verdict.reason, verdict.message)


def test_an_evaluation_that_returns_text_is_refused(tmp_path: Path) -> None:
    from harness.system.adapter_checks import AdapterError

    message = (
        r"evaluate\(\) must return a number, a tensor with one number, or several .* the str '\d\.\d{3}' under "
        r"'loss'"
    )
    with pytest.raises(AdapterError, match=message):
        evaluated("ReturnsText", tmp_path)


def test_a_system_without_an_evaluation_lacks_the_capability_evaluate(tmp_path: Path) -> None:
    from harness.system.protocol import NotAvailable

    with pytest.raises(
        NotAvailable, match="the step lacks the capability `evaluate`, because build returns no `evaluate`"
    ):
        evaluated("Without", tmp_path)
