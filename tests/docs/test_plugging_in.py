"""docs/plugging-in-a-trainer.md, word for word: its files written and its commands run, in an empty repository.

The harness is installed there from its wheel, in an environment that finds torch and the like where this one has them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pytest
import torch
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugging-in-a-trainer.md").read_text(encoding="utf-8")
FIRST = PAGE[PAGE.index("## From a script") : PAGE.index("## Which functions")]
BLOCK = re.compile(r"(?:`([\w./-]+)`[^`]*)?```(\w+)( written)?\n(.*?)```", re.DOTALL)
# exit codes of the commands that do not end with 0
CODES = {"harness try train.py:main": 2, "harness try train.py:make_step --no-compile": 1}


class Command(NamedTuple):
    line: str
    shown: list[str]


def commands(block: str) -> list[Command]:
    """The commands of a console block, each with the output that the page shows."""
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            found[-1].shown.append(line)
    return found


def shows(printed: list[str], shown: list[str]) -> bool:
    """Whether lines are as the page shows them: `…` alone is any number of lines, in a line any text."""
    if not shown:
        return not printed
    if shown[0].strip() == "…":
        return any(shows(printed[start:], shown[1:]) for start in range(len(printed) + 1))
    pattern = re.sub(r"([\[\]?*])", r"[\1]", shown[0]).replace("…", "*")
    return bool(printed) and fnmatchcase(printed[0].rstrip(), pattern.rstrip()) and shows(printed[1:], shown[1:])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built from a copy: a build leaves its traces where it is made."""
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(ROOT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = "import setuptools.build_meta as backend; backend.build_wheel('wheels')"
    (folder / "wheels").mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True, timeout=120)
    return folder / "wheels"


def others(folder: Path) -> Path:
    """Links to all that is installed here, but for the harness itself."""
    folder.mkdir()
    for packages in {Path(module.__file__ or "").parents[1] for module in (torch, mpl)}:
        for entry in packages.iterdir():
            if not entry.name.startswith(("contract_harness", "__editable__")) and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> dict[str, str]:
    """Variables of a shell with an environment of its own, in which pip has the wheel and nothing from an index."""
    place = tmp_path_factory.mktemp("environment") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, timeout=60)
    [packages] = place.glob("lib/*/site-packages")
    (packages / "others.pth").write_text(f"{others(place.parent / 'others')}\n")
    pip = place / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip --python "{place}/bin/python" "$@"\n')
    pip.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "GITHUB_"))}
    return {
        **kept,
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", folder], check=True, timeout=60)
    return folder


def test_the_page_works_as_written(
    environment: dict[str, str], repository: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    for name, language, written, block in BLOCK.findall(FIRST):
        file = repository / name
        if language == "console":
            for command in commands(block):
                run(command, environment, repository)
        elif written:
            assert file.read_text() == block
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block)
    record_testsuite_property("minutes_from_a_script_to_a_gate", round((time.monotonic() - began) / 60, 2))


def run(command: Command, environment: dict[str, str], repository: Path) -> None:
    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    done = shell(command.line)
    seen = f"$ {command.line}\n{done.stdout}{done.stderr}"
    assert done.returncode == CODES.get(command.line, 0), seen
    if command.line.startswith("pip"):
        assert "site-packages" in shell("python -c 'import harness; print(harness.__file__)'").stdout
    elif command.line.startswith("harness"):
        assert shows((done.stdout or done.stderr).splitlines(), command.shown), seen


def test_the_workflow_of_the_page_is_a_call_that_the_gate_takes() -> None:
    [caller] = [block for _, language, _, block in BLOCK.findall(FIRST) if language == "yaml"]
    [job] = yaml.safe_load(caller)["jobs"].values()
    repository, _, path = job["uses"].partition("/.github/")
    called = yaml.safe_load((ROOT / ".github" / path.partition("@")[0]).read_text())
    inputs = called[True]["workflow_call"]["inputs"]  # to YAML 1.1 the key `on` is a boolean
    assert repository == "OWNER/contract-harness"
    assert {name for name, one in inputs.items() if one.get("required")} <= job["with"].keys() <= inputs.keys()
