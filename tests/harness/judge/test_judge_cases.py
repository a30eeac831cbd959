"""Every judge reaches every one of its reason codes, and every code is reached by some evidence."""

import pytest
from judge_cases import Case
from judge_cases_tables import EVERYTHING, TABLES

from harness.judge.reasons import REASONS
from harness.judge.registry import JUDGES

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
