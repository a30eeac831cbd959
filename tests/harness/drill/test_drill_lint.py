"""What `harness check` says of faults that declare nothing and of the last drill; the page of faults is current."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from small_drill import write_contract

from harness.cli import check
from harness.contract.load import LoadedContract, load_contract
from harness.evidence import layout
from harness.lint import Finding, lint, lint_drill
from harness.run_directory.archive import unpack
from harness.run_directory.verdict_file import (
    FILE,
    DrillMachine,
    DrillRecord,
    Row,
    Triple,
    drilled_claims,
    record_text,
    records_below,
)
from harness.system.described import describe

ROOT = Path(__file__).parents[3]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedContract:
    monkeypatch.chdir(tmp_path)
    write_contract(tmp_path, "stale_batch, doubled_step, no_steps")
    return load_contract(Path("short-v1.yaml"))


def record(loaded: LoadedContract, *, digest: str = "", killed: bool = True, fault: str = "stale_batch") -> DrillRecord:
    held = Triple(status="PASS", reason="held")
    row = Row(
        contract="short-v1",
        claim="SHORT-001",
        workload="short",
        fault=fault,
        expected=held,
        seen=held,
        killed=killed,
        upstream_alone_passes=None,
        message="",
    )
    return DrillRecord(
        planned=1,
        recorded_at="2026-01-01T00:00:00+00:00",
        machine=DrillMachine(cuda=False, gpus=[], host_memory_gib=8.0),
        contracts={"short-v1": digest or loaded.digest},
        controls=[],
        rows=[row],
    )


def test_a_fault_that_declares_nothing_for_a_claim_is_an_error(tmp_path: Path) -> None:
    loaded = load_contract(write_contract(tmp_path, "stale_batch, doubled_step, no_steps, late_jit"))
    (finding,) = lint(loaded, describe)
    assert (finding.level, finding.message) == (
        "error",
        "fault 'late_jit' declares no verdict for 'SHORT-001' (trajectory_match), so no drill could judge it",
    )


def test_faults_planted_in_evidence_are_known_to_drill_lint(loaded: LoadedContract) -> None:
    assert lint(loaded, describe) == []


def test_check_reports_nothing_without_a_drill_record_or_with_a_clean_record(loaded: LoadedContract) -> None:
    assert lint_drill(loaded, []) == []
    assert lint_drill(loaded, [record(loaded)]) == []


def test_a_survivor_of_the_last_drill_is_a_warning(loaded: LoadedContract) -> None:
    assert lint_drill(loaded, [record(loaded, killed=False)]) == [
        Finding(
            "warning",
            "short-v1.yaml:12:9",
            "fault 'stale_batch' survived the last drill (2026-01-01T00:00:00+00:00) on short",
        )
    ]


def test_a_surviving_fault_that_the_claim_no_longer_lists_is_not_reported(loaded: LoadedContract) -> None:
    assert lint_drill(loaded, [record(loaded, killed=False, fault="nan_tail")]) == []


def test_check_uses_the_newest_drill_record(loaded: LoadedContract) -> None:
    assert lint_drill(loaded, [record(loaded, killed=False), record(loaded)]) == []


def test_a_contract_that_changed_since_its_drill_is_a_warning(loaded: LoadedContract) -> None:
    changed = replace(loaded, digest="1" * 64)
    (finding,) = lint_drill(changed, [record(loaded)])
    assert (finding.level, finding.where) == ("warning", "short-v1.yaml:2:5")
    assert finding.message.startswith("the contract has changed since its last drill")


def test_a_newer_drill_record_without_a_fault_does_not_hide_that_the_fault_survived(loaded: LoadedContract) -> None:
    survived = record(loaded, killed=False)
    other = record(loaded, fault="no_steps").model_copy(update={"recorded_at": "2026-01-02T00:00:00+00:00"})
    (finding,) = lint_drill(loaded, [survived, other])
    assert finding.message == "fault 'stale_batch' survived the last drill (2026-01-01T00:00:00+00:00) on short"


def test_a_fault_killed_on_a_different_workload_still_survived(loaded: LoadedContract) -> None:
    elsewhere = record(loaded)
    elsewhere = elsewhere.model_copy(update={"rows": [elsewhere.rows[0].model_copy(update={"workload": "long"})]})
    assert [each.level for each in lint_drill(loaded, [record(loaded, killed=False), elsewhere])] == ["warning"]


def test_recorded_drills_older_than_the_contract_are_counted(loaded: LoadedContract) -> None:
    (finding,) = lint_drill(loaded, [record(loaded, digest="1" * 64), record(loaded, fault="no_steps")])
    assert finding == Finding(
        "warning",
        "short-v1.yaml:2:5",
        "1 recorded drill result is older than the contract "
        "(first: fault 'stale_batch', 2026-01-01T00:00:00+00:00): run the drill again",
    )


PUBLISHED = {
    "alone": (ROOT / "reports/accuracy/2026-11-22-h200-step-accuracy-drill", "step-accuracy-v1"),
    "with a shared file": (ROOT / "reports/drills/2026-11-30-cpu-fp8", "fp8-v1"),
}


def drilled(run: Path, contract: str, folder: Path) -> Path:
    """Return a copy of the contract that a published drill was of, with the shared file that it names."""
    unpack(run / layout.ARCHIVE, folder, first=layout.CONTRACTS)
    copies = folder / "run" / layout.CONTRACTS
    path = copies / f"{contract}.yaml"
    for name in re.findall(r"shared/[\w-]+\.yaml", path.read_text()):
        [shared] = (copies / layout.SHARED_FILES).iterdir()
        shutil.copy(shared, copies / name)
    return path


@pytest.mark.parametrize("published", PUBLISHED)
def test_an_edited_text_for_people_does_not_outdate_a_drill(published: str, tmp_path: Path) -> None:
    run, contract = PUBLISHED[published]
    path = drilled(run, contract, tmp_path)
    as_drilled = load_contract(path)
    path.write_text(path.read_text().replace(as_drilled.contract.claims[0].title, "Other words") + "# edited\n")
    edited = load_contract(path)
    assert edited.contract.claims[0].title == "Other words"
    assert lint_drill(edited, records_below(run, [edited])) == []
    assert drilled_claims(records_below(run, [edited]), {contract: edited.digest})


@pytest.mark.parametrize("published", PUBLISHED)
def test_editing_a_number_that_a_judge_reads_outdates_the_drill(published: str, tmp_path: Path) -> None:
    run, contract = PUBLISHED[published]
    path = drilled(run, contract, tmp_path)
    path.write_text(re.sub(r"(?<=batch_size: )(?=\d)", "1", path.read_text()))
    edited = load_contract(path)
    (finding,) = lint_drill(edited, records_below(run, [edited]))
    assert finding.message.startswith("the contract has changed since its last drill")
    assert drilled_claims(records_below(run, [edited]), {contract: edited.digest}) == []


def test_editing_the_contract_copy_in_a_run_does_not_make_its_drill_current(tmp_path: Path) -> None:
    run, contract = PUBLISHED["alone"]
    path = drilled(run, contract, tmp_path)
    path.write_text(path.read_text() + "# edited\n")
    shutil.copy(run / FILE, tmp_path / "run")
    edited = load_contract(path)
    assert len(lint_drill(edited, records_below(tmp_path / "run", [edited]))) == 1


def test_check_reads_drill_records_in_reports_or_the_given_record(
    loaded: LoadedContract, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("reports/a").mkdir(parents=True)
    Path("reports/a", FILE).write_text(record_text(record(loaded, killed=False)), encoding="utf-8")
    Path("good.json").write_text(record_text(record(loaded)), encoding="utf-8")
    assert check.print_findings([loaded.path], as_json=False) == 0
    assert "0 errors · 1 warning" in capsys.readouterr().out
    assert check.print_findings([loaded.path], drill=Path("good.json"), as_json=False) == 0
    assert "0 errors · 0 warnings" in capsys.readouterr().out
