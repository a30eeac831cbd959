"""The scripts of action.yml, run by bash as a runner does, install the harness and verify a contract."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from dry_run import BASH, blocks, filled
from newest_python import VERSIONS
from waiting import eventually

from harness.errors import ExitCode

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
SCRIPTED = ROOT / "tests" / "support" / "scripted"


class Runner:
    """Run the steps of the action on a workspace. `known` is where installed packages and stub wheels lie."""

    def __init__(self, folder: Path, checkout: Path, known: tuple[Path, Path]) -> None:
        self.workspace, self.temporary, self.checkout = folder / "workspace", folder / "temporary", checkout
        for each in (self.workspace, self.temporary):
            each.mkdir()
        self.output, self.summary = folder / "output", folder / "summary.md"
        self.uploaded: list[Path] = []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))},
            "PATH": path,
            "PYTHONPATH": f"{SCRIPTED}{os.pathsep}{known[0]}",
            "CUDA_VISIBLE_DEVICES": "",
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_COMPILE": "0",  # Python compiles what is imported
            "PIP_FIND_LINKS": str(known[1]),
            "GITHUB_ACTIONS": "true",
            "CI": "true",
            "GITHUB_ACTION_PATH": str(checkout),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.output),
            "RUNNER_TEMP": str(self.temporary),
        }

    def write(self, *behaviours: str) -> None:
        """Write a contract with a unit for each behaviour into the workspace."""
        from scripted_system import contract_text

        (self.workspace / "contracts").mkdir()
        (self.workspace / "contracts" / "scripted-v1.yaml").write_text(contract_text(*behaviours))

    def start(self, name: str, inputs: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start the script of a step, with the variables that the inputs make."""
        block = blocks(ROOT / "action.yml")[name]
        values = given(inputs)
        environment = self.environment | {key: filled(value, values) for key, value in block.variables.items()}
        command = [*BASH, "-c", block.script]
        return subprocess.Popen(command, cwd=self.workspace, env=environment, text=True, start_new_session=True)

    def run(self, **inputs: str) -> int:
        """Verify, find what the last step uploads, and return the script's exit code."""
        code = self.start("verify", inputs).wait(timeout=120)
        self.uploaded = self.to_upload(inputs)
        return code

    def to_upload(self, inputs: Mapping[str, str]) -> list[Path]:
        """Return the files below the paths that the last step uploads, whatever became of those before."""
        [upload] = [each for each in STEPS if each.get("uses", "").startswith("actions/upload-artifact@")]
        assert upload["if"] == "always()"
        paths = filled(upload["with"]["path"], given(inputs)).splitlines()
        return [file for path in paths for folder in self.workspace.glob(path) for file in folder.rglob("*")]

    def outputs(self) -> dict[str, str]:
        """Return what the scripts wrote, by its name."""
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


def given(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the values of all inputs' expressions: the defaults, and in their place what the caller gives."""
    assert inputs.keys() <= ACTION["inputs"].keys()
    values = {name: one["default"] for name, one in ACTION["inputs"].items()} | dict(inputs)
    return {f"inputs.{name}": value for name, value in values.items()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, checkout: Path, known: tuple[Path, Path]) -> Path:
    """Run the step `install` once, with requirements that have hashes; returns the folder that it made."""
    runner = Runner(tmp_path_factory.mktemp("action"), checkout, known)
    [wheel] = known[1].glob("torch-*.whl")
    pinned = f"torch=={version('torch')} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    (runner.workspace / "requirements.txt").write_text(pinned)
    inputs = {"extras": "run,attest", "install": "--quiet --no-deps --requirement requirements.txt"}
    assert runner.start("install", inputs).wait(timeout=300) == 0
    return runner.temporary / "contract-harness"


@pytest.fixture
def runner(
    tmp_path: Path, installed: Path, checkout: Path, known: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Runner:
    monkeypatch.syspath_prepend(SCRIPTED)
    made = Runner(tmp_path, checkout, known)
    (made.temporary / "contract-harness").symlink_to(installed)
    return made


@pytest.mark.slow
def test_the_action_installs_the_harness_of_its_own_checkout(runner: Runner, installed: Path) -> None:
    look = [str(installed / "bin" / "python"), "-P", "-c", "import harness; print(harness.__file__)"]
    place = subprocess.run(look, env=runner.environment, capture_output=True, text=True, check=True).stdout
    assert place.startswith(f"{installed}/lib/")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviours", "gate", "code"),
    [
        (["held"], "true", ExitCode.HELD),
        (["held", "violated"], "true", ExitCode.VIOLATED),
        (["held", "not_run"], "true", ExitCode.UNDECIDED),
        (["held", "not_run"], "false", ExitCode.HELD),
    ],
)
def test_the_action_exits_like_the_harness_and_uploads_the_run(
    runner: Runner, behaviours: list[str], gate: str, code: ExitCode
) -> None:
    runner.write(*behaviours)
    inputs = {"gate": gate, "reports": "some reports", "name": "part-1"}
    assert runner.run(**inputs) == code
    assert runner.outputs() == {"exit-code": str(int(code))}
    assert filled(ACTION["outputs"]["run-directory"]["value"], given(inputs)) == "some reports/part-1"
    assert (runner.workspace / "some reports" / "part-1" / "manifest.json").is_file()
    assert [each.name for each in runner.uploaded if each.name == "report.html"] == ["report.html"]
    assert "SCRIPT-001" in runner.summary.read_text()


@pytest.mark.slow
def test_options_narrow_the_run_and_inputs_are_never_commands(runner: Runner) -> None:
    runner.write("held", "violated")
    assert runner.run(options="--workload held", contracts="contracts/scripted-v1.yaml") == ExitCode.HELD
    assert runner.run(contracts="contracts/; touch made $(touch made)", name="second") == ExitCode.USAGE
    assert not list(runner.workspace.rglob("*made*"))


@pytest.mark.slow
def test_a_gate_input_that_is_neither_true_nor_false_runs_nothing(runner: Runner) -> None:
    runner.write("held")
    assert runner.run(gate="yes") == ExitCode.USAGE
    assert not (runner.workspace / "harness-reports").exists()


@pytest.mark.slow
def test_a_runner_that_stops_the_action_gets_an_incomplete_directory_to_upload(runner: Runner) -> None:
    runner.write("waits")
    with runner.start("verify", {}) as process:
        eventually(lambda: list(runner.workspace.rglob("heartbeat")), "a worker", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == ExitCode.TERMINATED
    assert runner.outputs() == {"exit-code": str(int(ExitCode.TERMINATED))}
    assert [each.name for each in runner.to_upload({}) if each.name == "INCOMPLETE"] == ["INCOMPLETE"]


@pytest.mark.slow
def test_versions_that_the_project_requires_are_never_replaced(
    tmp_path: Path, checkout: Path, known: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    runner = Runner(tmp_path, checkout, known)
    tools, wheels = tmp_path / "tools", shutil.copytree(known[1], tmp_path / "wheels")
    tools.mkdir()
    for entry in known[0].glob("setuptools*"):  # to build the harness
        (tools / entry.name).symlink_to(entry)
    [new] = wheels.glob("torch-*.whl")
    with zipfile.ZipFile(new) as read, zipfile.ZipFile(wheels / "torch-2.0.0-py3-none-any.whl", "w") as old:
        for name in read.namelist():
            text = read.read(name).decode().replace(version("torch"), "2.0.0")
            old.writestr(name.replace(version("torch"), "2.0.0"), text)
    runner.environment |= {"PIP_FIND_LINKS": str(wheels), "PYTHONPATH": str(tools)}
    assert runner.start("install", {"install": "torch==2.0.0"}).wait(timeout=300) == 1
    assert "The user requested (constraint) torch==2.0.0" in capfd.readouterr().out


def test_every_input_is_described_used_and_reaches_scripts_by_a_variable() -> None:
    used = re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", (ROOT / "action.yml").read_text())
    assert {*used} == ACTION["inputs"].keys()
    assert all(one["description"] and "default" in one for one in ACTION["inputs"].values())
    assert [each["id"] for each in STEPS if "${{" in each.get("run", "")] == []
    assert ACTION["inputs"]["python-version"]["default"] in VERSIONS
