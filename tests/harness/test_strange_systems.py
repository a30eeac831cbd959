"""Commands and pytest over systems that misbehave: what each says, its exit code, and that it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from strange_systems import STRANGE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("warm_commands")
NAMES = ("exits_at_once", "leaves_described", "raises", "none", "kills_its_parent", "answers_itself")
QUICK = tuple(f"{name}.yaml" for name in NAMES)


@pytest.fixture
def contracts(scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A contract for each strange system, and one for a sound one, in a folder with the systems."""
    from scripted_system import contract_text

    for name in (*NAMES, "deaf"):  # deaf: hangs, and ignores SIGTERM
        STRANGE[name].write(tmp_path / f"stranger_{name}.py")
        text = contract_text("held").replace("scripted-v1", f"of-{name}").replace("SCRIPT-001", f"C-{name.upper()}")
        (tmp_path / f"{name}.yaml").write_text(
            text.replace("scripted_system:ScriptedSystem", f"stranger_{name}:System")
        )
    (tmp_path / "sound.yaml").write_text(contract_text("held", "violated").replace("scripted-v1", "sound"))
    monkeypatch.chdir(tmp_path)
    # the module of the scripted system makes its processes play runs
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(scripted), str(ROOT)]))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return tmp_path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def said_of(name: str, folder: Path) -> str:
    return (STRANGE[name].found or "").format(path=folder / f"stranger_{name}.py")


def test_check_reports_an_error_for_each_misbehaving_system(contracts: Path) -> None:
    done = run("harness", "check", *QUICK, "sound.yaml")
    assert done.returncode == 11, done.stderr
    for name in NAMES:
        [line] = [line for line in done.stderr.splitlines() if f"'stranger_{name}:System' cannot be described" in line]
        assert line.startswith(f"{name}.yaml:")
        assert said_of(name, contracts) in line


def test_a_gate_over_misbehaving_systems_is_closed_with_an_error_for_each(contracts: Path) -> None:
    done = run("harness", "verify", ".", "--gate", "--json", "--no-where", "--wall-limit", "2")
    assert done.returncode == 12, done.stderr
    units = {claim["contract"]: claim for claim in json.loads(done.stdout)["claims"]}
    for name in (*NAMES, "deaf"):
        unit = units[f"of-{name}"]
        assert (unit["status"], unit["reason"]) == ("ERROR", "system_not_described")
        assert f"stranger_{name}:System" in unit["message"]


def test_doctor_lists_each_misbehaving_system_as_broken(contracts: Path) -> None:
    done = run("harness", "doctor", *QUICK)
    assert done.returncode == 0, done.stderr
    broken = [line for line in done.stdout.splitlines() if line.startswith("BROKEN  ")]
    assert sorted(line.split(":")[0] for line in broken) == sorted(f"BROKEN  stranger_{name}" for name in NAMES)


@pytest.mark.parametrize("name", ["exits_at_once", "none"])
def test_a_drill_of_a_system_without_a_description_is_an_error(contracts: Path, name: str) -> None:
    done = run("harness", "drill", f"{name}.yaml")
    assert (done.returncode, done.stdout) == (12, "")
    assert done.stderr.splitlines()[-1].startswith(f"error: stranger_{name}:System: ")
    assert said_of(name, contracts) in done.stderr


def test_pytest_reports_an_error_for_each_misbehaving_system(contracts: Path) -> None:
    (contracts / "pytest.ini").write_text("[pytest]\ncontract_paths = .\n")
    done = run("pytest", "exits_at_once.yaml", "raises.yaml")
    assert done.returncode == 12, done.stdout
    assert "2 errors" in done.stdout.splitlines()[-1]
    assert "ERROR system_not_described: stranger_raises:System: " in done.stdout
