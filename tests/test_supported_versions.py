"""One table says which Pythons and which torch are supported: whatever names them agrees with it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import newest_python
import pytest
from newest_python import PROJECT, VERSIONS, torch_versions

ROOT = Path(__file__).parents[1]
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]
PAGES = ("README.md", "docs/ci.md", "docs/tutorial.md")


def test_supported_python_versions_are_sorted_and_start_at_requires_python() -> None:
    assert sorted(VERSIONS, key=lambda version: int(version.removeprefix("3."))) == VERSIONS
    assert PROJECT["requires-python"] == f">={OLDEST}"
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in VERSIONS


def test_the_tools_check_the_oldest_supported_python_version() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["mypy"]["python_version"] == OLDEST
    assert tools["ruff"]["target-version"] == f"py{OLDEST.replace('.', '')}"
    assert f"python{OLDEST}" in (ROOT / ".ci" / "floors").read_text()


def test_the_workflows_name_exactly_the_supported_python_versions() -> None:
    workflows = [path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    assert {version for text in workflows for version in re.findall(r'"(3\.\d+)"', text)} == {*VERSIONS}


def test_one_part_of_the_checks_runs_completely_on_the_oldest_and_the_newest_python() -> None:
    checks = (ROOT / ".github" / "workflows" / "checks.yml").read_text()
    installed = re.findall(r'python-version: "(3\.\d+)"', checks.partition("run: .ci/run newest")[0])
    assert installed[-2:] == [NEWEST, OLDEST]


def test_the_readme_names_the_oldest_and_the_newest_python() -> None:
    readme = (ROOT / "README.md").read_text()
    oldest, newest = torch_versions()
    assert f"Python {OLDEST} to {NEWEST}" in readme
    assert f"torch {oldest} to {newest}" in readme


@pytest.mark.parametrize("page", PAGES)
def test_no_page_names_an_unsupported_python_version(page: str) -> None:
    named = re.findall(r"\b(?:Python|under|to|and) (3\.\d+)\b", (ROOT / page).read_text())
    assert {*named} <= {*VERSIONS}


def test_every_extra_requires_the_same_oldest_torch() -> None:
    extras = PROJECT["optional-dependencies"].values()
    named = {line for extra in extras for line in extra if re.match(r"torch\b", line)}
    assert named == {f"torch>={torch_versions()[0]}"}


Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a Python of this version where pyenv has it; there is no other on PATH."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))

    def write(version: str, text: str = "#!/bin/sh\n") -> Path:
        python = tmp_path / "versions" / version / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(text)
        python.chmod(0o755)
        return python

    return write


def test_the_newest_installed_python_that_starts_is_used(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_python, "VERSIONS", ["3.90", "3.91", "3.92"])
    assert newest_python.newest_python() is None
    install("3.92.0", "#!/bin/sh\nexit 127\n")
    install("3.93.0")
    install("3.91.2")
    taken = install("3.91.10")
    install("3.91-dev")
    install("3.90.0")
    assert newest_python.newest_python() == str(taken)


def test_another_patch_release_of_the_running_python_does_not_count_as_newer(install: Install) -> None:
    install(f"{sys.version_info.major}.{sys.version_info.minor}.99")
    assert newest_python.newest_python() is None
