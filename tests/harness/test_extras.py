"""What an extra adds, as a command that works: by the packages' own names, since no index has the harness."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from harness.platform import paths as extras

ROOT = Path(__file__).parents[2]
LISTED = [
    "numpy>=1.26",
    "cuda-bindings>=12.9; sys_platform == 'linux' and extra == 'run'",
    'torch>=2.11; extra == "run"',
    'submitit>=1.5; extra == "fleet"',
]


@pytest.mark.parametrize(("pip", "program"), [(True, ["pip"]), (False, ["uv", "pip"])])
def test_the_install_command_lists_the_packages_of_the_extra_for_the_available_installer(
    pip: bool, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: LISTED)
    monkeypatch.setattr(extras, "find_spec", lambda _: object() if pip else None)
    packages = ["cuda-bindings>=12.9; sys_platform == 'linux'", "torch>=2.11"]
    assert shlex.split(extras.command_for("run")) == [*program, "install", *packages]
    assert shlex.split(extras.command_for("fleet")) == [*program, "install", "submitit>=1.5"]


def test_the_install_command_in_a_source_tree_that_was_never_installed_installs_this_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", missing)
    assert extras.command_for("run") == "pip install '.[run]'"


@pytest.mark.parametrize("extra", ["run", "attest", "fleet"])
def test_pip_accepts_the_printed_install_command(extra: str) -> None:
    program, *arguments = shlex.split(extras.command_for(extra))
    assert program == "pip"
    command = [sys.executable, "-m", "pip", *arguments, "--no-index", "--dry-run", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, "contract-harness" in done.stdout) == (0, False), done.stderr
