"""What a plain install does, without torch and all else that the extra `run` adds; also with Windows's Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.contract.shared import RULE
from harness.errors import ExitCode
from harness.platform.paths import command_for

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "plain_install.py"
PUBLISHED = ROOT / "reports" / "2026-11-22-h200-throughput-tiny"
REMEDY = f"`{command_for('run')}` installs everything that runs need"
SHARED = ("arms", "hundred-steps", "ten-steps", "transformers")


class PlainInstall:
    """A process of a system, in which each command line is tried."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def harness(self, *arguments: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([str(folder), [*map(str, arguments)]]), file=self.process.stdin, flush=True)
        code, out, err = json.loads(self.process.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, out, err)


@pytest.fixture(scope="module")
def systems() -> Iterator[dict[str, PlainInstall]]:
    """A plain install on either system."""
    installs = {"posix": PlainInstall(), "windows": PlainInstall("--windows")}
    yield installs
    for each in installs.values():
        each.process.communicate()


@pytest.fixture
def posix(systems: dict[str, PlainInstall]) -> PlainInstall:
    return systems["posix"]


@pytest.fixture
def windows(systems: dict[str, PlainInstall]) -> PlainInstall:
    return systems["windows"]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["check", "contracts"], "18 contracts · 117 claims · 0 errors · "),
        (["judge", "--check", PUBLISHED], "same     "),
        (["judge", PUBLISHED], "1 unit · 1 held"),
        (["compare", PUBLISHED, PUBLISHED], "the same"),
        (["explain", "F-GRAPH-BWD-003"], "F-GRAPH-BWD-003: The captured step is at least 1.10 times as fast"),
        (["schema"], '"title": "Contract"'),
    ],
    ids=["check", "judge-check", "judge", "compare", "explain", "schema"],
)
def test_reading_and_judging_need_neither_torch_nor_posix(
    windows: PlainInstall, command: list[str], shown: str
) -> None:
    done = windows.harness(*command)
    shared = ", ".join(f"contracts/shared/{name}.yaml" for name in SHARED)
    files = f"contracts: 18 contract files ({RULE}); {len(SHARED)} shared files: {shared}\n"
    files = files if command[0] == "check" else ""
    # what the published drills leave to be said of the contracts is a warning, on any system
    told = [line for line in done.stderr.splitlines(keepends=True) if ": warning: " not in line]
    assert (done.returncode, "".join(told)) == (0, files)
    assert shown in done.stdout


def test_reports_are_drawn_without_torch_and_posix(windows: PlainInstall, tmp_path: Path) -> None:
    shutil.copytree(PUBLISHED, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    drawn = windows.harness("report", tmp_path / "run")
    assert (drawn.returncode, drawn.stdout.splitlines()[-1]) == (0, str(tmp_path / "run" / "report.html")), drawn.stderr
    history = windows.harness("history", tmp_path, "--out", tmp_path / "history.html")
    assert (history.returncode, history.stdout) == (0, f"1 run: {tmp_path / 'history.html'}\n"), history.stderr


@pytest.mark.parametrize(
    ("system", "missing"),
    [
        ("posix", f"needs torch, filelock, pynvml, cuda.bindings, which are not installed here; {REMEDY}"),
        ("windows", "runs need Linux or macOS; recorded evidence can be judged on any system"),
    ],
)
def test_doctor_of_a_plain_install_lists_the_modules_that_runs_need(
    systems: dict[str, PlainInstall], system: str, missing: str
) -> None:
    done = systems[system].harness("doctor", "contracts/traced-step-v1.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 of 3 units can be decided on this machine\n")
    assert f"Cannot be decided, {missing}:" in done.stdout


def test_a_gate_without_the_run_extra_is_undecided_without_an_error(posix: PlainInstall, tmp_path: Path) -> None:
    done = posix.harness("verify", "contracts/traced-step-v1.yaml", "--gate", "--reports", tmp_path)
    assert (done.returncode, done.stderr) == (10, "")
    first, unit, *_ = done.stdout.splitlines()
    assert first == "3 units · 3 not run"
    assert REMEDY in unit


def test_a_trial_without_the_run_extra_prints_the_missing_modules_once(posix: PlainInstall, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def make_step():\n    return step, batch, model\n")
    done = posix.harness("try", f"{tmp_path}/train.py:make_step")
    assert (done.returncode, done.stderr) == (10, "")
    lines = done.stdout.splitlines()
    assert " ".join(" ".join(lines[2:-2]).split()) == (
        f"not run needs torch, filelock, pynvml, cuda.bindings, which are not installed here; {REMEDY}"
    )
    doubt = " No commit has this harness."  # only in a checkout with uncommitted changes
    assert [lines[-2], lines[-1].removesuffix(doubt)] == ["", "NOT DECIDED: Nothing at all was decided."]


def test_a_drill_without_the_run_extra_plants_nothing(posix: PlainInstall, tmp_path: Path) -> None:
    done = posix.harness("drill", "contracts/traced-step-v1.yaml", "--reports", tmp_path)
    assert (done.returncode, done.stderr) == (10, "")
    assert done.stdout.startswith("0 faults planted · 0 killed")
    assert REMEDY in done.stdout


def test_pytest_works_without_the_run_extra(tmp_path: Path) -> None:
    """The project's tests run, and the units of its contract are skipped with the remedy."""
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert True\n")
    shutil.copy(ROOT / "contracts" / "traced-step-v1.yaml", tmp_path)
    shutil.copytree(ROOT / "contracts" / "shared", tmp_path / "shared")
    program = tmp_path / "run_pytest.py"
    program.write_text(
        "import sys\nimport plain_install\nplain_install.hide(plain_install.NOT_INSTALLED)\nimport pytest\n"
        "sys.exit(pytest.main(['-p', 'harness.pytest_plugin', '-p', 'no:cacheprovider', '-rs', '-o', "
        "'contract_paths=.', '.']))\n"
    )
    path = os.pathsep.join(map(str, (PROGRAM.parent, ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 passed, 3 skipped" in done.stdout, done.stdout + done.stderr
    assert REMEDY in done.stdout


def test_the_hook_for_pre_commit_checks_the_contracts_of_a_repository(posix: PlainInstall, tmp_path: Path) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    words = [*hook["entry"].split(), *hook["args"]]
    assert (words[0], hook["language"]) == ("harness", "python")
    shutil.copytree(ROOT / "contracts" / "shared", tmp_path / "contracts" / "shared")
    broken = Path(shutil.copy(ROOT / "contracts" / "memory-v1.yaml", tmp_path / "contracts"))
    good = posix.harness(*words[1:], folder=tmp_path)
    broken.write_text(broken.read_text().replace("claims:", "claim:"))
    bad = posix.harness(*words[1:], folder=tmp_path)
    assert (good.returncode, bad.returncode) == (ExitCode.HELD, ExitCode.INVALID_CONTRACT), good.stderr + bad.stderr
    assert "memory-v1.yaml" in bad.stderr
    assert re.search(hook["files"], str(broken.relative_to(tmp_path)))
