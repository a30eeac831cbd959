"""`--plan`: what would be executed, where, and what it took before; nothing is executed and nothing written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.api import session
from harness.api.drill import DrillOptions, drill
from harness.cli import application
from harness.devices import environment
from harness.evidence import layout
from harness.evidence.files import write_text
from harness.evidence.read_run import ProcessTimes
from harness.execution.supervisor import write_process_times
from harness.run_directory.bundle import read_bundle

RUN = "scripted-v1+held+paired"


def never(*_: object, **__: object) -> None:
    pytest.fail("nothing is executed under --plan")


@pytest.fixture
def folder(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    (tmp_path / "contracts").mkdir()
    return tmp_path


def write_contract(*behaviours: str, steps: int = 5) -> None:
    from scripted_system import contract_text

    text = contract_text(*behaviours).replace("steps: 5, needs", f"steps: {steps}, needs")
    Path("contracts/scripted-v1.yaml").write_text(text)


def planned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command prints when it ends with exit code 0; it executes nothing."""
    capsys.readouterr()
    monkeypatch.setattr("harness.execution.supervisor.execute", never)
    monkeypatch.setattr(sys, "argv", ["harness", *words])
    with pytest.raises(SystemExit) as left:
        application.main()
    printed = capsys.readouterr().out
    assert left.value.code == 0, printed
    return printed


def as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(planned(monkeypatch, capsys, *words, "--json"))
    return found


def executed(name: str, seconds: float, waited: float = 1.0) -> Path:
    """A gate of the contract, of which each worker took so many seconds, the first ones waiting for its run."""
    directory = session.verify([Path("contracts")], session.VerifyOptions(name=name)).run_directory
    assert directory is not None
    for run in read_bundle(directory).header.runs:
        evidence = directory / layout.EVIDENCE / run
        phases = [("start", 0.0), ("fast.0: steps", 1.0), ("plain.0: steps", 3.0), ("plain.1: steps", 5.0)]
        lines = [f'{{"record":"phase","name":"{phase}","seconds":{at},"began":{100 + at}}}\n' for phase, at in phases]
        records = evidence / layout.RECORDS
        ended = records.read_text().replace(
            '"record":"complete","seconds":0.5', f'"record":"complete","seconds":{seconds}'
        )
        write_text(records, "".join(lines) + ended)
        begin = 100.0 - waited
        write_process_times(evidence, ProcessTimes(started=begin, ready=begin, given_run=100.0, ended=100.0 + seconds))
    return directory


def test_the_plan_prints_units_runs_and_the_source_of_its_estimates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("held")
    executed("earlier", 8.0)
    write_contract("held", "violated", "not_run")
    processors = f"processors: {environment.cpu_model()}"
    here = sorted(Path("harness-reports").rglob("*"))
    assert planned(monkeypatch, capsys, "verify", "contracts", "--plan").splitlines() == [
        "3 planned · 2 can be decided here · 1 cannot",
        "  can run   SCRIPT-001 on held: scripted-v1+held+paired",
        "  can run   SCRIPT-001 on violated: scripted-v1+violated+paired",
        "  not here  1 unit, module_missing: needs a_module_that_nobody_has, which is not installed here",
        "            SCRIPT-001 on not_run",
        "2 runs to execute; nothing has been executed",
        f"  {RUN} (paired, {processors}): about 8.0 s, by run {RUN} of earlier",
        "            for SCRIPT-001 on held",
        f"  scripted-v1+violated+paired (paired, {processors}): unknown, because no similar run is recorded",
        "            for SCRIPT-001 on violated",
        "About 8.0 s for 1 run, if one process followed another.",
        "Unknown for 1 run: no similar run is recorded in the folder of --reports.",
    ]
    assert sorted(Path("harness-reports").rglob("*")) == here


@pytest.mark.parametrize("command", ["verify", "drill"])
def test_planning_a_system_that_cannot_be_described_exits_like_a_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    write_contract("held")
    contract = Path("contracts/scripted-v1.yaml")
    contract.write_text(contract.read_text().replace("system: scripted_system:", "system: nowhere_to_be_found:"))
    monkeypatch.setattr(sys, "argv", ["harness", command, "contracts", "--plan"])
    with pytest.raises(SystemExit) as left:
        application.main()
    assert left.value.code == 12


def test_planning_without_earlier_runs_writes_nothing_and_knows_no_duration(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("held")
    found = as_json(monkeypatch, capsys, "verify", "contracts", "--plan", "--gate")
    assert (found["seconds"], found["unknown"], found["together"]) == (0.0, 1, None)
    assert sorted(path.name for path in folder.iterdir()) == ["contracts"]


def test_the_plan_estimates_equal_runs_from_their_latest_durations(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("held", "violated")
    executed("2026-11-20-older", 20.0)
    executed("2026-11-21-newer", 8.0, waited=2.5)
    found = as_json(monkeypatch, capsys, "verify", "contracts", "--plan")
    assert [run["estimate"] for run in found["runs"]] == [
        {"seconds": 8.0, "source": f"run scripted-v1+{name}+paired of 2026-11-21-newer"}
        for name in ("held", "violated")
    ]
    assert (found["seconds"], found["unknown"]) == (16.0, 0)
    assert found["together"] == {"seconds": 10.5, "source": "2026-11-21-newer"}


def test_a_single_run_is_not_estimated_by_the_duration_of_a_shared_session(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("held", "violated")
    executed("earlier", 8.0)
    found = as_json(monkeypatch, capsys, "verify", "contracts", "--workload", "held", "--plan")
    assert (len(found["runs"]), found["seconds"], found["together"]) == (1, 8.0, None)


def test_the_plan_scales_the_duration_of_each_arm_with_its_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Start (1 s) and end (0 s) keep their durations.

    For ten times as many steps, the 2 s of the candidate and the 5 s of the baseline become ten times as long.
    """
    write_contract("held")
    executed("earlier", 8.0)
    write_contract("held", steps=50)
    found = as_json(monkeypatch, capsys, "verify", "contracts", "--plan")
    assert found["runs"][0]["estimate"] == {
        "seconds": 71.0,
        "source": "steps of the same arms in scripted-v1+held+paired of earlier",
    }
    assert found["together"] is None


@pytest.mark.parametrize("name", ["cpu_model", "usable_cores"])
def test_durations_of_a_different_machine_give_no_estimate(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("held")
    executed("earlier", 8.0)
    monkeypatch.setattr(f"harness.cli.forecast.{name}", lambda: None)
    assert as_json(monkeypatch, capsys, "verify", "contracts", "--plan")["runs"][0]["estimate"] is None


def test_a_run_that_died_gives_no_estimate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("error")
    executed("earlier", 8.0)
    assert as_json(monkeypatch, capsys, "verify", "contracts", "--plan")["runs"][0]["estimate"] is None


def test_a_drill_lists_controls_faults_and_their_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("held")
    found = as_json(monkeypatch, capsys, "drill", "contracts", "--plan")
    assert [(unit["fault"], unit["workload"], unit["runs"], unit["obstacle"]) for unit in found["units"]] == [
        (None, "held", ["scripted-v1+held+paired"], None),
        ("nan_tail", "held", ["scripted-v1+held+paired+nan_tail"], None),
    ]
    assert [(run["id"], run["serves"]) for run in found["runs"]] == [
        ("scripted-v1+held+paired", ["SCRIPT-001 on held"]),
        ("scripted-v1+held+paired+nan_tail", ["SCRIPT-001 on held with the fault nan_tail"]),
    ]
    assert not Path("harness-reports").exists()


def test_the_plan_of_a_drill_lists_the_runs_that_the_drill_executes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("held")
    directory = drill([Path("contracts")], DrillOptions(name="drilled")).run_directory
    assert directory is not None
    there = sorted(path.name for path in (directory / layout.EVIDENCE).iterdir())
    found = as_json(monkeypatch, capsys, "drill", "contracts", "--plan")
    assert sorted(run["id"] for run in found["runs"]) == there


@pytest.mark.parametrize("command", ["verify", "drill"])
def test_a_plan_of_shards_is_refused(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_contract("held")
    monkeypatch.setattr(sys, "argv", ["harness", command, "contracts", "--plan", "--gpus", "all"])
    with pytest.raises(SystemExit) as left:
        application.main()
    assert left.value.code == 2
    assert "leave out --gpus or --plan" in capsys.readouterr().err
