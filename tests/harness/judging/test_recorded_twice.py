"""Blocks of micro-batches that overlap: the later one must not hide what the earlier one shows.

No record is there twice: reading refuses that (`tests/harness/evidence/test_recorded_twice.py`).
"""

from judge_cases_accumulation import accumulated, micro_batches


def test_micro_batches_recorded_for_more_steps_than_the_arm_made_are_an_evidence_error() -> None:
    verdict = accumulated(read=[micro_batches([["same", "same"]]), micro_batches()])
    assert verdict.reason == "evidence_missing"
    assert verdict.message == "micro-batches were recorded for 11 of 10 steps of graphed"
