"""Waivers through the command line: exit codes, count line, run.json, reports; on their last day and after it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from one_day import TODAY
from sealing import forge

from harness.api import rejudge
from harness.cli import application as cli

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def harness(
    scripted: Path,
    played: None,
    noon: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Call the command line in a folder with a contract of two units: one holds, one is violated."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    Path("contracts").mkdir()
    Path("contracts/scripted-v1.yaml").write_text(contract_text("held", "violated"))

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["harness", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, said.out + said.err

    return call


def write_waiver(path: str = "contracts/waivers.yaml", *, days: int = 1, workload: str = "violated") -> None:
    Path(path).write_text(
        "schema: waivers/v1\nwaivers:\n"
        f"  - {{contract: scripted-v1, claim: SCRIPT-001, workload: {workload}, owner: ada, reason: known, "
        f"expires: {TODAY + timedelta(days=days)}}}\n"
    )


def run_directory() -> Path:
    [found] = Path("harness-reports").iterdir()
    return found


def test_a_waived_violation_is_shown_and_counted_separately(harness: Call) -> None:
    write_waiver(days=0)
    code, said = harness("verify", "contracts", "--gate")
    lines = said.splitlines()
    counted = "2 units · 1 held · 1 waived"
    assert code == 0
    assert counted in lines
    assert f"           Waived by ada until {TODAY}: known" in lines
    held = "HELD, 1 waived: The gate is open: every planned unit was decided and held, or is waived (1)."
    [place] = [
        place for place, line in enumerate(lines) if line.startswith(held)
    ]  # one sentence more if files are uncommitted
    assert lines[place + 1].startswith("report: ")  # the last of stdout
    directory = run_directory()
    [waiver] = json.loads((directory / "run.json").read_text())["waivers"]
    assert (waiver["owner"], waiver["expires"], waiver["expired"]) == ("ada", str(TODAY), False)
    statuses = [claim["status"] for claim in json.loads((directory / "verdicts.json").read_text())["claims"]]
    assert statuses == ["PASS", "FAIL"]  # judges have no clock
    for name in ("report.html", "summary.md"):
        assert counted in (directory / name).read_text()
    [skipped] = ET.parse(directory / "junit.xml").iter("skipped")  # noqa: S314 - written just now
    assert str(skipped.get("message")).startswith(f"waived by ada until {TODAY}: known; FAIL differs")


def test_an_expired_waiver_is_reported_and_its_unit_is_violated_again(harness: Call) -> None:
    write_waiver(days=-1)
    code, said = harness("verify", "contracts")
    assert code == 1
    assert "2 units · 1 held · 1 violated" in said.splitlines()
    assert f"The waiver by ada ended with {TODAY - timedelta(days=1)}: known" in said
    assert "The waiver by ada ended" in (run_directory() / "report.html").read_text()


def test_judging_a_run_later_applies_waivers_by_the_day_of_the_run(harness: Call) -> None:
    """A waiver that was valid when the run began stays valid for this run. It has no effect on later runs."""
    write_waiver(days=0)
    harness("verify", "contracts")
    forge(run_directory() / "run.json", lambda header: header.update(started_at="2020-01-01T00:00:00+00:00"))
    code, said = harness("judge", str(run_directory()))
    assert code == 0
    assert "1 waived" in said.splitlines()[0]


def test_checking_a_run_again_counts_its_waived_unit_as_waived(harness: Call) -> None:
    write_waiver(days=0)
    harness("verify", "contracts")
    code, said = harness("judge", "--check", str(run_directory()))
    assert (code, said.splitlines()[0].rpartition(": ")[2]) == (0, "2 units · 1 held · 1 waived")


def test_a_waiver_file_can_be_selected_by_an_option(harness: Call) -> None:
    write_waiver("others.yaml")
    assert harness("verify", "contracts", "--waivers", "others.yaml")[0] == 0
    assert harness("verify", "contracts", "--waivers", "nowhere.yaml")[0] == 2


def test_a_waiver_for_a_passing_unit_does_not_hide_a_violation(harness: Call) -> None:
    write_waiver(workload="held")
    code, said = harness("verify", "contracts")
    assert (code, "waived" in said) == (1, False)


def test_a_waiver_that_matches_no_unit_is_a_lint_error(harness: Call) -> None:
    write_waiver()
    assert harness("check", "contracts")[0] == 0
    write_waiver(workload="violeted")
    code, said = harness("check", "contracts")
    assert code == 11
    assert "contracts/waivers.yaml:3:5: error: a waiver must name a unit that a contract plans; found workload" in said


def test_a_damaged_waiver_file_prevents_the_run(harness: Call) -> None:
    Path("contracts/waivers.yaml").write_text("schema: waivers/v1\nwaivers: [{owner: ada}]\n")
    code, said = harness("verify", "contracts")
    assert code == 11
    assert "a waiver must have the key 'expires'" in said
    assert not Path("harness-reports").exists()


def test_json_output_lists_the_waived_units(harness: Call) -> None:
    write_waiver()
    harness("verify", "contracts")
    _, outcome = rejudge.judged([run_directory()])
    from harness.api import session

    [waived] = json.loads(session.judgement_json(outcome))["waived"]
    assert (waived["claim"], waived["workload"], waived["owner"]) == ("SCRIPT-001", "violated", "ada")
