"""`harness judge --check` of a drill's directory: rows are judged again, and whatever was changed is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealing import forge as change
from sealing import seal

from harness.api import drill as fire_drill
from harness.api import session
from harness.api.rejudge import judged
from harness.cli import judge
from harness.cli.pack import published
from harness.errors import EvidenceError, SystemResolutionError
from harness.run_directory.seal import manifest_of, read_manifest, write_manifest
from harness.run_directory.verdict_file import FILE

CONTROL = "short-v1+short+paired"
FAULTED = f"{CONTROL}+lost_first_update"


@pytest.fixture
def directory(outcome: fire_drill.DrillResult, tmp_path: Path) -> Path:
    """A copy of a drill's directory, to be damaged."""
    assert outcome.run_directory is not None
    return Path(shutil.copytree(outcome.run_directory, tmp_path / "copy"))


def row_of(record: dict[str, Any], fault: str) -> dict[str, Any]:
    return next(row for row in record["rows"] if row["fault"] == fault)


def check(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, the directory's line without its name and verdicts, what was told beside it."""
    code = judge.check_recorded([directory], as_json=False)
    told = capsys.readouterr()
    word, _, rest = told.out.splitlines()[0].partition("  ")
    return code, f"{word}: {rest.strip().removeprefix(f'{directory}: 1 unit · 1 held · ')}", told.err


def test_judging_a_drill_again_compares_every_row_including_rows_without_a_run(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(directory, capsys) == (0, "same: 5 rows: 5 same · 0 differ · 0 not judged again", "")


def survived(record: dict[str, Any]) -> None:
    row_of(record, "lost_first_update")["killed"] = False


def other_figure(record: dict[str, Any]) -> None:
    row_of(record, "doubled_step")["seen"]["figures"] = {"first_differing_step": 3}


def softer_expectation(record: dict[str, Any]) -> None:
    row_of(record, "no_steps")["expected"]["reason"] = "differs"


def other_message(record: dict[str, Any]) -> None:
    row_of(record, "missing_run")["message"] = "all is well"


def test_a_drill_row_with_a_reworded_message_is_the_same(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(directory / FILE, other_message)
    assert check(directory, capsys)[1] == "same: 5 rows: 5 same · 0 differ · 0 not judged again"


def foreign_run(record: dict[str, Any]) -> None:
    row_of(record, "missing_run")["runs"] = ["short-v1+short+paired+elsewhere"]


def unnamed_fault(record: dict[str, Any]) -> None:
    row_of(record, "missing_run")["fault"] = "stale_batch"


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (survived, "lost_first_update: killed is recorded as false, but is now true"),
        (other_figure, "doubled_step: seen is recorded as"),
        (softer_expectation, "no_steps: expected is recorded as"),
        (foreign_run, "missing_run: run short-v1+short+paired+elsewhere was not planned"),
        (unnamed_fault, "stale_batch: the directory's contracts require no such row"),
    ],
)
def test_a_changed_row_of_a_drill_record_is_reported_as_a_difference(
    edit: Callable[[dict[str, Any]], None], told: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(directory / FILE, edit)
    code, line, problems = check(directory, capsys)
    assert (code, line) == (12, "differs: 5 rows: 4 same · 1 differ · 0 not judged again")
    assert f"{directory}: {FILE}: SHORT-001 on short: {told}" in problems


def left_out(record: dict[str, Any]) -> None:
    record["rows"].remove(row_of(record, "doubled_step"))
    record["planned"] -= 1


def called_not_run(record: dict[str, Any]) -> None:
    row = row_of(record, "doubled_step")
    record["rows"].remove(row)
    record["not_run"].append({**{name: row[name] for name in ("contract", "claim", "fault", "message")}, "reason": "a"})


def twice(record: dict[str, Any]) -> None:
    record["rows"].append(row_of(record, "doubled_step"))
    record["planned"] += 1


def other_control(record: dict[str, Any]) -> None:
    record["controls"][0]["status"] = "FAIL"


def other_contract(record: dict[str, Any]) -> None:
    record["contracts"]["short-v1"] = "0" * 64


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (left_out, "run short-v1+short+paired+doubled_step was planned, but no row reads its evidence"),
        (twice, "SHORT-001: doubled_step: the record has 2 rows, but the contract requires one"),
        (other_control, "controls (units without a fault) have other verdicts now than in the record"),
        (other_contract, "the record names other contracts than `run.json` does"),
    ],
)
def test_a_drill_record_edited_outside_its_rows_differs(
    edit: Callable[[dict[str, Any]], None], told: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(directory / FILE, edit)
    code, line, problems = check(directory, capsys)
    assert (code, problems.strip()) == (12, f"{directory}: {FILE}: {told}")
    assert " 0 differ " in line


def test_a_surviving_fault_recorded_as_not_run_is_a_difference(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The difference is found even if a row of another claim reads the same run."""
    change(directory / FILE, called_not_run)
    code, _, problems = check(directory, capsys)
    run = f"{CONTROL}+doubled_step"
    assert code == 12
    assert f"SHORT-001: doubled_step: run {run} was planned, but the record lists the fault as not run" in problems
    assert f"run {run} was planned, but no row reads its evidence" in problems


def test_a_drill_record_that_lists_fewer_faults_than_planned_is_refused(directory: Path) -> None:
    change(directory / FILE, lambda record: record["rows"].pop())
    with pytest.raises(EvidenceError, match="5 faults were planned, but 4 are listed"):
        judged([directory])


def test_changed_evidence_of_a_faulted_run_is_a_difference(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    series = directory / "evidence" / FAULTED / "traced.0.csv"
    shutil.copy(directory / "evidence" / CONTROL / "traced.0.csv", series)
    code, line, problems = check(directory, capsys)
    assert (code, line) == (12, "differs: 5 rows: 4 same · 1 differ · 0 not judged again")
    assert f"evidence/{FAULTED}/traced.0.csv: changed" in problems
    assert "; killed is recorded as true, but is now false" in problems


@pytest.mark.parametrize("lost", [FAULTED, CONTROL])
def test_lost_evidence_of_a_faulted_or_a_control_run_is_reported_as_a_difference(
    lost: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(directory / "evidence" / lost)
    code, _, problems = check(directory, capsys)
    assert code == 12
    assert f"SHORT-001 on short: lost_first_update: the evidence of {lost} is missing" in problems


def test_a_drill_row_whose_run_left_no_evidence_is_reported_and_counted(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(directory / "evidence" / FAULTED)
    seal(directory)
    code, line, told = check(directory, capsys)
    assert (code, line) == (0, "same: 5 rows: 4 same · 0 differ · 1 not judged again")
    assert told == (
        f"{directory}: SHORT-001 on short: lost_first_update: not judged again: "
        f"run {FAULTED} left no evidence in this directory\n"
    )


def nameless(record: dict[str, Any]) -> None:
    row_of(record, "doubled_step")["runs"] = []


def test_a_drill_row_without_a_run_is_reported_and_counted(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(directory / FILE, nameless)
    shutil.rmtree(directory / "evidence" / f"{CONTROL}+doubled_step")
    change(directory / "run.json", lambda header: header["runs"].pop(f"{CONTROL}+doubled_step"))
    code, line, told = check(directory, capsys)
    assert (code, line) == (0, "same: 5 rows: 4 same · 0 differ · 1 not judged again")
    assert "doubled_step: not judged again: the record does not state which runs the row reads" in told


def test_judging_a_drill_without_its_system_keeps_the_recorded_expectation_and_reports_that(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_system(name: str) -> None:
        raise SystemResolutionError("the system's module must be importable", where=name)

    monkeypatch.setattr(session, "describe", no_system)
    code, line, told = check(directory, capsys)
    assert (code, line) == (0, "same: 5 rows: 0 same · 0 differ · 5 not judged again")
    assert told.count("the declaration of the fault cannot be read here: reference_impl.system:QLoRASystem") == 1
    assert " and 4 other rows: not judged again: the declaration of the fault" in told
    change(directory / FILE, survived)
    assert check(directory, capsys)[0] == 12


def test_rewriting_an_altered_drill_record_restores_what_the_judges_decide(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = (directory / FILE).read_bytes()
    change(directory / FILE, survived)
    judge.replace_recorded([directory])
    capsys.readouterr()
    assert (directory / FILE).read_bytes() == published
    assert check(directory, capsys)[0] == 0


def test_a_packed_drill_is_checked_against_the_record_next_to_its_archive(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = directory.parent / "published"
    published(directory, folder)
    assert (folder / FILE).read_bytes() == (directory / FILE).read_bytes()
    assert check(folder, capsys)[0] == 0
    seen = read_manifest(folder)[0].seen
    change(folder / FILE, lambda record: row_of(record, "doubled_step").update(killed=False))
    write_manifest(folder, manifest_of(folder).model_copy(update={"seen": seen}))
    code, _, told = check(folder, capsys)
    assert (code, "doubled_step: killed is recorded as" in told) == (12, True)
    judge.replace_recorded([folder])
    assert (folder / FILE).read_bytes() == (directory / FILE).read_bytes()


def test_a_packed_drill_without_its_record_names_the_archive(directory: Path) -> None:
    folder = directory.parent / "published"
    published(directory, folder)
    with pytest.raises(EvidenceError, match=r"run\.tar\.xz/drill\.json: the drill record must be readable") as refused:
        judged([folder / "run.tar.xz"])
    assert str(refused.value).startswith(str(folder))
