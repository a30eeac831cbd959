"""The install step of our own gate, by pip: what it brings is what the contracts need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from dry_run import blocks
from offline_packages import offline_checkout

from harness.contract.load import load_contracts

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
INSTALLED_WITH_EXTRAS = re.compile(r"'\.\[([\w,-]+)\]'")


def needed_modules() -> set[str]:
    """What the shipped contracts' workloads name under `needs: modules:`."""
    contracts = [loaded.contract for loaded in load_contracts([ROOT / "contracts"])]
    return {name for each in contracts for workload in each.workloads.values() for name in workload.needs.modules}


def absent_modules(workspace: Path, modules: set[str]) -> list[str]:
    """Those that the environment of the install step cannot find."""
    look = "import importlib.util, sys; print(*[m for m in sys.argv[1:] if importlib.util.find_spec(m) is None])"
    command = [str(workspace / ".venv" / "bin" / "python"), "-I", "-c", look, *sorted(modules)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_the_install_step_installs_the_command_and_every_module_that_contracts_need(tmp_path: Path) -> None:
    """The test starts with an empty environment, and pip finds replacement packages instead of an index."""
    (tmp_path / "source").mkdir()
    variables = offline_checkout(ROOT, tmp_path / "source")
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = yaml.safe_load((WORKFLOWS / "gpu-gate.yml").read_text())["jobs"]["gpu"]["with"]
    values = {"inputs.install": given["install"], "github.workspace": str(tmp_path)}
    install = blocks(WORKFLOWS / "gate.yml")["verify.install"]
    assert install.run(tmp_path / "source", values, {**os.environ, **variables}).returncode == 0
    assert (tmp_path / "source" / ".venv" / "bin" / "harness").exists()
    assert absent_modules(tmp_path / "source", needed_modules()) == []


@pytest.mark.parametrize(
    "path", [*sorted(WORKFLOWS.glob("*.yml")), ROOT / "docs" / "ci.md", ROOT / "Makefile"], ids=str
)
def test_extras_that_workflows_and_pages_install_exist(path: Path) -> None:
    """If an extra does not exist, pip only warns and installs the other packages."""
    existing = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for extras in INSTALLED_WITH_EXTRAS.findall(path.read_text()) for name in extras.split(",")}
    assert named <= existing.keys()
