"""Drills of the reference trainer from contract to record, and `verify --fault` on the same contract."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from budget import slow_but
from small_drill import run_here, write_contract

from harness.api import drill as fire_drill
from harness.api import session
from harness.cli import judge, report
from harness.devices import environment
from harness.errors import EvidenceError
from harness.run_directory.bundle import read_bundle
from harness.run_directory.shards import refuse_mixed
from harness.run_directory.verdict_file import FILE, Row, read_record

# Each with the reason code, and the first step that is not as it should be.
BY_VERIFY = {
    "stale_batch": ("unequal_batches", "first_differing_step", 1),
    "nan_tail": ("non_finite", "first_non_finite_step", 5),  # both arms' NaN are equal in bits
}
BY_DRILL = {
    "lost_first_update": ("differs", {"first_differing_step": 1}),
    "doubled_step": ("differs", {"first_differing_step": 5}),
}
BY_ANOTHER_DRILL = {
    name: ("differs", {"first_differing_step": 2})
    for name in ("frozen_learning_rate", "frozen_bias_correction", "dropped_clip")
}
DRILLED = {
    "lost_first_update": False,  # whether upstream's number alone would let it pass, on one layer
    "doubled_step": False,
    "nan_tail": False,
    "no_steps": False,
    "missing_run": None,
}


def test_every_fault_of_a_drill_is_killed_and_its_control_passes(outcome: fire_drill.DrillResult) -> None:
    assert {row.fault: row.seen for row in outcome.record.rows if not row.killed} == {}
    assert {row.fault for row in outcome.record.rows} == set(DRILLED)
    assert [(each.claim, each.workload, each.status) for each in outcome.record.controls] == [
        ("SHORT-001", "short", "PASS")
    ]
    assert outcome.exit_code == 0


def test_a_drilled_fault_differs_from_the_step_that_it_declares(outcome: fire_drill.DrillResult) -> None:
    assert {row.fault: told(row) for row in outcome.record.rows if row.fault in BY_DRILL} == BY_DRILL


def told(row: Row) -> tuple[str, dict[str, Any]]:
    return row.seen.reason, dict(row.seen.figures)


@pytest.mark.slow
def test_a_frozen_or_dropped_part_of_the_update_differs_from_the_step_that_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch, tmp_path)
    monkeypatch.setattr(session, "write_reports", lambda *_: None)  # drawing takes longer than training here
    path = write_contract(tmp_path, ", ".join(BY_ANOTHER_DRILL))
    found = fire_drill.drill([path], fire_drill.DrillOptions(reports=tmp_path / "reports"))
    assert {row.fault: told(row) for row in found.record.rows} == BY_ANOTHER_DRILL
    assert all(row.killed for row in found.record.rows)


def test_the_drill_record_states_which_faults_upstreams_number_would_pass(outcome: fire_drill.DrillResult) -> None:
    assert {row.fault: row.upstream_alone_passes for row in outcome.record.rows} == DRILLED


def test_a_faulted_run_leaves_the_unfaulted_arms_to_the_control(outcome: fire_drill.DrillResult) -> None:
    assert outcome.run_directory is not None
    evidence = outcome.run_directory / "evidence"
    assert {path.name for path in (evidence / "short-v1+short+paired+lost_first_update").glob("*.csv")} == {
        "traced.0.csv"
    }
    assert {path.name for path in (evidence / "short-v1+short+paired").glob("*.csv")} == {
        "plain.0.csv",
        "plain.1.csv",
        "traced.0.csv",
    }
    assert not (evidence / "short-v1+short+paired+missing_run").exists()
    source = outcome.record.sources["short-v1+short+paired+lost_first_update"]
    assert (source.executed_arms, source.donor) == (["traced"], "short-v1+short+paired")


def test_a_drill_directory_contains_its_record_its_report_and_the_drill_mark(outcome: fire_drill.DrillResult) -> None:
    directory = outcome.run_directory
    assert directory is not None
    assert read_record(directory / FILE) == outcome.record
    assert "Faults by claims" in (directory / "report.html").read_text(encoding="utf-8")
    bundle = read_bundle(directory)
    assert bundle.complete
    with pytest.raises(EvidenceError, match="must not plant a fault"):
        refuse_mixed([bundle])
    assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) < 3_000_000


def test_a_copied_drill_directory_is_judged_the_same_and_its_page_shows_the_drill(
    outcome: fire_drill.DrillResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome.run_directory is not None
    directory = tmp_path / "copy"
    shutil.copytree(outcome.run_directory, directory)
    assert judge.check_recorded([directory], as_json=False) == 0
    assert capsys.readouterr().out.startswith(f"same     {directory}: 1 unit · 1 held")
    (directory / "report.html").unlink()
    report.render(directory)
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert "5 faults planted on purpose, 0 survived; the units are the controls, run without a fault." in page
    assert "All 5 planted faults were killed." in page
    assert "was planted in this run on purpose" not in page
    assert "5 of 5 planned faults killed" in page
    assert "the units are the controls" in (directory / "summary.md").read_text(encoding="utf-8")


def test_a_drill_directory_is_refused_as_a_gate(outcome: fire_drill.DrillResult) -> None:
    assert outcome.run_directory is not None
    with pytest.raises(EvidenceError, match="a shard of a gate must not plant a fault"):
        judge.print_verdicts([outcome.run_directory], gate=True, as_json=False)


def test_a_drill_directory_without_its_record_is_damaged(outcome: fire_drill.DrillResult, tmp_path: Path) -> None:
    assert outcome.run_directory is not None
    directory = tmp_path / "copy"
    shutil.copytree(outcome.run_directory, directory, ignore=shutil.ignore_patterns(FILE))
    with pytest.raises(EvidenceError, match="the drill record must be readable"):
        judge.check_recorded([directory], as_json=False)


@pytest.mark.slow
def test_a_claim_that_cannot_fail_lets_faults_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch, tmp_path)
    path = write_contract(tmp_path, "lost_first_update, dropped_step", equality="within", tolerance="100.0")
    found = fire_drill.drill([path], fire_drill.DrillOptions(reports=tmp_path / "reports"))
    seen = {row.fault: (row.killed, row.seen.status) for row in found.record.rows}
    # its baseline is the control run's, so how far the ends lie apart was not recorded: no PASS, and no kill
    assert seen == {"lost_first_update": (False, "INCONCLUSIVE"), "dropped_step": (True, "FAIL")}
    assert found.exit_code == 1


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_runs_of_two_concurrent_workers_equal_the_control_run_up_to_the_faulty_step(tmp_path: Path) -> None:
    path = write_contract(tmp_path, "doubled_step, unended_capture")
    found = fire_drill.drill([path], fire_drill.DrillOptions(reports=tmp_path / "reports"))
    seen = {row.fault: (row.killed, row.seen.reason, row.seen.figures) for row in found.record.rows}
    assert seen == {
        "doubled_step": (True, "differs", {"first_differing_step": 5}),
        "unended_capture": (True, "worker_exception", {}),
    }


def test_a_drill_with_nothing_to_run_is_undecided(tmp_path: Path) -> None:
    path = write_contract(tmp_path, "stale_batch")
    path.write_text(path.read_text(encoding="utf-8").replace("device: cpu", "device: cuda"), encoding="utf-8")
    if environment.machine().cuda:
        pytest.skip("this machine can run it")
    found = fire_drill.drill([path], fire_drill.DrillOptions(reports=tmp_path / "reports"))
    assert found.exit_code == 10
    assert [each.reason for each in found.record.not_run] == ["needs_cuda"]
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("fault", slow_but(["stale_batch"], BY_VERIFY))
def test_verify_with_a_fault_fails_as_the_fault_declares(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch, tmp_path)
    monkeypatch.setattr(session, "write_reports", lambda *_: None)  # drawing takes longer than training here
    path = write_contract(tmp_path, fault)
    options = session.VerifyOptions(workloads=("short",), fault=fault, reports=tmp_path / "reports")
    found = session.verify([path], options)
    reason, figure, step = BY_VERIFY[fault]
    (verdict,) = found.verdicts
    assert (verdict.status.value, verdict.reason) == ("FAIL", reason)
    assert verdict.figures[figure].value == step
    assert found.exit_code == 1
    assert found.run_directory is not None
    assert json.loads((found.run_directory / "run.json").read_text(encoding="utf-8"))["fault"] == fault
