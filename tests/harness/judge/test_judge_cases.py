"""Every judge reaches every one of its reason codes, and every code is reached by some evidence."""

import pytest
from judge_cases import Case
from judge_cases_capture import CAPTURE_CASES, MEMORY_CASES, SYNC_CASES
from judge_cases_gradients import GRADIENT_CASES
from judge_cases_kernel_match import MATCH_CASES
from judge_cases_kernels import PREWARM_CASES, PTX_CASES
from judge_cases_throughput import OTHER_CASES, THROUGHPUT_CASES
from judge_cases_training import REPEATABILITY_CASES, TRAJECTORY_CASES

from harness.judge.reasons import REASONS
from harness.judge.registry import JUDGES

TABLES = {
    "trajectory_match": TRAJECTORY_CASES,
    "repeatability": REPEATABILITY_CASES,
    "gradient_match": GRADIENT_CASES,
    "capture": CAPTURE_CASES,
    "host_syncs": SYNC_CASES,
    "memory_steady": MEMORY_CASES,
    "ptx_target": PTX_CASES,
    "prewarm": PREWARM_CASES,
    "kernel_match": MATCH_CASES,
    "throughput_ratio": THROUGHPUT_CASES,
}
EVERYTHING = TABLES | {"any": OTHER_CASES}
ALL = [pytest.param(case, id=f"{kind}: {case.name}") for kind, cases in EVERYTHING.items() for case in cases]


@pytest.mark.parametrize("case", ALL)
def test_one_wrong_thing_gives_its_reason(case: Case) -> None:
    verdict = case.judged()
    assert (verdict.reason, verdict.status) == (case.reason, REASONS[case.reason].status), verdict.message


def test_every_reason_code_is_reached() -> None:
    reached = {case.reason for cases in EVERYTHING.values() for case in cases}
    assert reached == set(REASONS)


def test_every_kind_has_a_judge_and_a_table() -> None:
    assert set(TABLES) == set(JUDGES)


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_reaches_pass_fail_and_error(kind: str) -> None:
    statuses = {str(REASONS[case.reason].status) for case in TABLES[kind]}
    assert {"PASS", "FAIL", "ERROR"} <= statuses
