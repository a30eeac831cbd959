"""What a run directory is for is told by its header, whatever the fault in it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import judge, report
from harness.cli.application import application
from harness.errors import UsageError
from harness.run_directory.bundle import read_bundle


@pytest.fixture
def contract(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A contract of a system whose faults are named like words of the harness."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "scripted-v1.yaml"
    path.write_text(contract_text("held").replace("ScriptedSystem", "FaultySystem").replace("nan_tail", "drill"))
    return path


@pytest.mark.parametrize("fault", ["drill", "fault", "verify"])
def test_a_planted_fault_may_have_any_name(fault: str, contract: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verified = CliRunner().invoke(application([]), ["verify", str(contract), "--fault", fault, "--name", "planted"])
    directory = Path("harness-reports/planted")
    assert verified.exit_code == 1, verified.output
    assert f"FIRE DRILL: The fault {fault} was planted in this run on purpose" in verified.output
    header = read_bundle(directory).header
    assert (header.purpose, header.fault) == ("fault", fault)
    assert judge.check_recorded([directory], as_json=False) == 0
    assert capsys.readouterr().out.startswith("same     harness-reports/planted: 1 unit · 1 violated")
    report.render(directory)
    assert f"The fault {fault} was planted in this run on purpose" in (directory / "report.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_a_gate_with_a_planted_fault_is_refused(plan: list[str], contract: Path) -> None:
    """Regression: if the fault survived, the gate was open, although `judge --gate` refuses the directory."""
    planted = CliRunner().invoke(application([]), ["verify", str(contract), "--gate", "--fault", "one_batch", *plan])
    assert isinstance(planted.exception, UsageError)
    assert str(planted.exception) == (
        "a gate must not plant a fault; found --fault one_batch; leave out --gate or --fault"
    )
    assert not Path("harness-reports").exists()


@pytest.mark.parametrize(
    "command", [["verify", "--fault", "one_batch"], ["drill"]], ids=["a fault that survived", "a drill"]
)
def test_a_run_with_a_planted_fault_is_not_an_open_gate_in_json(command: list[str], contract: Path) -> None:
    """Regression: `gate.open` was true, although `judge --gate` refuses such a run."""
    assert CliRunner().invoke(application([]), [*command, str(contract), "--name", "planted"]).exit_code == 0
    judged = CliRunner().invoke(application([]), ["judge", "harness-reports/planted", "--json"])
    assert json.loads(judged.stdout)["gate"] == {"open": False}


def test_a_fault_named_drill_can_be_planted_by_a_drill(contract: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drilled = CliRunner().invoke(application([]), ["drill", str(contract), "--name", "drilled"])
    assert drilled.exit_code == 0, drilled.output
    directory = Path("harness-reports/drilled")
    header = read_bundle(directory).header
    assert (header.purpose, header.fault) == ("drill", None)
    assert judge.check_recorded([directory], as_json=False) == 0
    assert "1 row: 1 same" in capsys.readouterr().out
    assert "1 fault planted on purpose, 0 survived" in (directory / "report.html").read_text(encoding="utf-8")
