"""A drill whose runs are executed in lanes: rows, judging again, archives and interruption see whole runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_drill import execute_here, in_lanes, run_here, write_contract

from harness.api import drill as fire_drill
from harness.api.rejudge import rejudged
from harness.cli import judge, pack
from harness.errors import ExitCode
from harness.evidence.plan_records import Run
from harness.execution import supervisor
from harness.run_directory.verdict_file import read_record

FAULTS = "lost_first_update, swapped_arms, missing_run"
CONTROL = "evidence/short-v1+short+paired"


def drilled(folder: Path, patch: pytest.MonkeyPatch, *, stop_in: str = "") -> fire_drill.DrillResult:
    """A drill with lanes; ended by SIGTERM while the lane `stop_in` of the control is under way."""

    def execute(run: Run, directory: Path, *arguments: object, **options: object) -> None:
        if run.fault is None and directory.name == stop_in:
            directory.mkdir()
            raise SystemExit(ExitCode.TERMINATED)
        execute_here(run, directory, *arguments, **options)

    run_here(patch, folder)
    in_lanes(patch)
    patch.setattr(supervisor, "execute", execute)
    options = fire_drill.DrillOptions(reports=folder / "reports", name="drilled")
    return fire_drill.drill([write_contract(folder, FAULTS)], options)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drill")
    with pytest.MonkeyPatch.context() as patch:
        drilled(folder, patch)
    return folder / "reports/drilled"


@pytest.fixture
def directory(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "drilled"))


def test_every_drill_row_is_judged_from_the_lanes_of_its_runs(directory: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    record = read_record(directory / "drill.json")
    assert [control.status for control in record.controls] == ["PASS"]
    assert {row.fault: row.killed for row in record.rows} == {
        "lost_first_update": True,
        "swapped_arms": True,
        "missing_run": True,
    }
    folders = [f"{path.parent.name}/{path.name}" for path in sorted(directory.glob("evidence/*/lane.*"))]
    # the faulted arm alone, and arms that change places, are whole
    assert folders == [f"{Path(CONTROL).name}/lane.{number}" for number in range(3)]


def test_a_drill_with_lanes_is_judged_again_from_folder_and_archive(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lane is a part of a run with its own worker process."""
    pack.published(directory, tmp_path / "published")
    assert judge.check_recorded([directory, tmp_path / "published"], as_json=False) == 0
    assert capsys.readouterr().out.count("3 rows: 3 same") == 2


def test_a_lane_removed_from_a_drill_is_reported_as_missing(directory: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    shutil.rmtree(directory / CONTROL / "lane.1")
    again = rejudged(directory)
    assert [verdict.reason for verdict in again.judgement.verdicts] == ["worker_incomplete"]
    names = ("", "/plain.1.csv", "/records.jsonl", "/run.json")
    lost = [f"drilled: {CONTROL}/lane.1{name}: missing" for name in names]
    assert list(again.judgement.view.altered) == lost


def test_a_lane_added_to_a_drill_is_reported(directory: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    shutil.copytree(directory / CONTROL / "lane.1", directory / CONTROL / "lane.3")
    again = rejudged(directory)
    assert [verdict.reason for verdict in again.judgement.verdicts] == ["worker_garbage"]
    assert f"drilled: {CONTROL}/lane.3/run.json: not recorded with the run" in again.judgement.view.altered


def test_a_drill_control_without_its_last_lane_is_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane is a part of a run with its own worker process."""
    with pytest.raises(SystemExit) as stopped:
        drilled(tmp_path, monkeypatch, stop_in="lane.1")
    assert "marked INCOMPLETE" in stopped.value.__notes__[0]
