"""A drill that is ended early keeps the rows whose runs had ended, and proves nothing: the others were never killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from small_drill import execute_here, run_here, write_contract

from harness.api import drill
from harness.api import drill as fire_drill
from harness.cli import judge, pack
from harness.errors import EvidenceError
from harness.evidence.plan_records import Run
from harness.execution import supervisor
from harness.run_directory.bundle import read_bundle
from harness.run_directory.verdict_file import read_record

FAULTS = "lost_first_update, doubled_step, missing_run, nan_tail"


def drilled(folder: Path, patch: pytest.MonkeyPatch, *, stop_at: str) -> fire_drill.DrillResult:
    """A drill that is ended by SIGTERM while the run whose id ends with `stop_at` is under way."""

    def execute(run: Run, directory: Path, *arguments: object, **options: object) -> None:
        if run.id.endswith(stop_at):
            directory.mkdir()
            (directory / "records.jsonl").write_text('{"record": "phase", "name": "plain.0: steps", "seconds": 0.1}\n')
            raise SystemExit(143)
        execute_here(run, directory, *arguments, **options)

    run_here(patch, folder)
    patch.setattr(supervisor, "execute", execute)
    return fire_drill.drill(
        [write_contract(folder, FAULTS)], fire_drill.DrillOptions(reports=folder / "reports", name="drilled")
    )


@dataclass(frozen=True)
class Interrupted:
    """How a drill was ended, and its directory, which nothing changes."""

    stopped: SystemExit
    directory: Path


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        drilled(folder, patch, stop_at="+doubled_step")
    return Interrupted(stopped.value, folder / "reports" / "drilled")


@pytest.mark.slow
def test_an_interrupted_drill_keeps_the_rows_whose_runs_ended(
    interrupted: Interrupted, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped, directory = interrupted.stopped, interrupted.directory
    assert stopped.code == 143
    assert stopped.__notes__ == [f"kept the results of 3 faults whose runs had ended, marked INCOMPLETE: {directory}"]
    record = read_record(directory / "drill.json")
    assert {row.fault: row.killed for row in record.rows} == {
        "lost_first_update": True,
        "nan_tail": True,
        "missing_run": True,
    }
    assert [(each.fault, each.reason) for each in record.not_run] == [("doubled_step", "interrupted")]
    assert [each.status for each in record.controls] == ["PASS"]
    assert (record.planned, len(record.interrupted)) == (4, 1)
    assert not read_bundle(directory).complete
    assert judge.check_recorded([directory], as_json=False) == 12
    told = capsys.readouterr()
    assert "3 rows: 3 same" in told.out
    assert told.err == f"{directory}: the run did not finish, or its manifest.json was removed\n"


UNPLANTED = "The run did not finish, 1 of 4 planned faults was never planted, so nothing here is proven."


@pytest.mark.slow
def test_faults_that_never_ran_in_an_interrupted_drill_do_not_count_as_killed(
    interrupted: Interrupted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = interrupted.directory
    assert judge.print_verdicts([directory], gate=False, as_json=False) == 12
    assert f"ERROR: {UNPLANTED}" in capsys.readouterr().out
    for name in ("report.html", "summary.md"):
        assert UNPLANTED in (directory / name).read_text(encoding="utf-8")
    cases = ET.parse(directory / "junit.xml").getroot()  # noqa: S314 - written just now
    assert cases.get("errors") == "1"
    record = read_record(directory / "drill.json")
    shown = drill.headline_of(record)
    assert (shown.code, str(shown)) == (
        12,
        "ERROR: The drill was interrupted: 3 of 4 planned faults were killed, 1 was never planted.",
    )
    with pytest.raises(EvidenceError, match="the run did not finish"):
        pack.published(directory, tmp_path / "published")


def test_an_interrupted_drill_without_a_control_keeps_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as stopped:
        drilled(tmp_path, monkeypatch, stop_at="+paired")
    assert "marked INCOMPLETE" in stopped.value.__notes__[0]
    assert (tmp_path / "reports" / "drilled" / "INCOMPLETE").exists()
