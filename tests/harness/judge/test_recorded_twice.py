"""What was recorded twice: the later record must not hide what the earlier one shows."""

from evidence_builders import gradients
from judge_cases_accumulation import accumulated, micro_batches
from judge_cases_gradients import A, matched, unlike
from judge_cases_step_accuracy import accurate, both, every, step, tensor


def test_gradients_of_one_step() -> None:
    records = [gradients(0, tensors=[A, unlike(5.0)]), gradients(0), gradients(5)]
    verdict = matched(execution={"gradients": records})
    assert verdict.reason == "evidence_inconsistent"
    assert verdict.message == "gradients of graphed were recorded twice at one step"


def test_micro_batches_of_one_step() -> None:
    verdict = accumulated(read=[micro_batches([["same", "same"]]), micro_batches()])
    assert verdict.reason == "evidence_missing"
    assert verdict.message == "the micro-batches of 11 of graphed's 10 steps were recorded"


def test_errors_of_one_seed_and_step() -> None:
    verdict = accurate(records=[step(0, 1, **both(tensor("a", 50.0))), *every()])
    assert verdict.reason == "evidence_inconsistent"
    assert verdict.message == "gradients of one seed and step were compared twice"
