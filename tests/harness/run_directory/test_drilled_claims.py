"""What drills that lay beside a run when it began say of its claims."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_views import CONTRACT, drilled, header

from harness.api.session import with_earlier_runs
from harness.run_directory.verdict_file import ClaimDrilled, DrillRecord, drilled_claims, record_text

TEXT = {CONTRACT["id"]: "0d" * 32}
UNIT = (CONTRACT["id"], "F-GRAPH-BWD-001")


def counts(found: list[ClaimDrilled]) -> list[tuple[int, int, int]]:
    assert {(one.contract, one.claim) for one in found} <= {UNIT}
    return [(one.killed, one.planted, one.not_run) for one in found]


def test_killed_planted_and_unrun_faults_are_counted() -> None:
    assert counts(drilled_claims([drilled(killed=[True, False, True], not_run=2)], TEXT)) == [(2, 3, 2)]


def test_the_faults_of_the_newest_drill_are_counted() -> None:
    records = [drilled(killed=[True, True]), drilled(killed=[False])]
    assert counts(drilled_claims(records, TEXT)) == [(0, 1, 0)]


@pytest.mark.parametrize("contracts", [{}, {CONTRACT["id"]: "1e" * 32}], ids=["of another", "of another text"])
def test_a_drill_of_a_different_contract_is_not_used(contracts: dict[str, str]) -> None:
    assert drilled_claims([drilled(killed=[True])], contracts) == []


def test_a_claim_absent_from_the_newest_drill_keeps_the_result_of_an_older_drill() -> None:
    narrowed = DrillRecord.model_validate(drilled(killed=[]).model_dump())
    assert counts(drilled_claims([drilled(killed=[True]), narrowed], TEXT)) == [(1, 1, 0)]


def test_a_run_records_the_drills_in_the_same_reports_folder(tmp_path: Path) -> None:
    (tmp_path / "a-drill").mkdir()
    (tmp_path / "a-drill" / "drill.json").write_text(record_text(drilled(killed=[True, False])))
    begun = header(digests={"contracts": TEXT, "source": "0f" * 32})
    assert counts(with_earlier_runs(begun, [], tmp_path).drilled) == [(1, 2, 0)]
    assert with_earlier_runs(begun, [], tmp_path / "elsewhere").drilled == []


def test_a_later_drill_without_planted_faults_does_not_hide_a_survivor() -> None:
    """On a machine without a GPU most faults cannot be run."""
    gpu, cpu = drilled(killed=[True, False]), drilled(killed=[], not_run=2)
    left = [one.model_copy(update={"fault": f"fault{at}"}) for at, one in enumerate(cpu.not_run)]
    assert counts(drilled_claims([gpu, cpu.model_copy(update={"not_run": left})], TEXT)) == [(1, 2, 0)]


def test_drills_without_planted_faults_report_the_newest_count() -> None:
    assert counts(drilled_claims([drilled(killed=[], not_run=3), drilled(killed=[], not_run=2)], TEXT)) == [(0, 0, 2)]
