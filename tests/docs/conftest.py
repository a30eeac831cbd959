"""An environment like a reader's, shared by the pages that are followed in it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_server
import warm_start

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
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


def installed(package: str) -> Path:
    """The folder that a package is installed in; it is not imported."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def others(folder: Path) -> Path:
    """Links to all that is installed here, but for the harness itself."""
    folder.mkdir()
    for packages in {installed("torch"), installed("matplotlib"), installed("pip")}:
        for entry in packages.iterdir():
            if not entry.name.startswith(("contract_harness", "__editable__")) and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> dict[str, str]:
    """Variables of a shell with an environment of its own, in which pip has the wheel and nothing from an index."""
    place = tmp_path_factory.mktemp("environment") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, timeout=60)
    [packages] = place.glob("lib/*/site-packages")
    (packages / "others.pth").write_text(f"{others(place.parent / 'others')}\n")
    pip = place / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{place}/bin/python" -m pip "$@"\n')  # pip is one of the others
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


@pytest.fixture(scope="session")
def warm_environment(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same once the harness is installed there; workers of commands are forks of one process of that environment,
    which imports torch once for all of them.
    """
    address = str(tmp_path_factory.mktemp("warm") / "socket")
    python = environment["PATH"].partition(":")[0] + "/python"
    room = "x" * warm_server.ROOM
    variables = {**environment, "PYTHONHASHSEED": "0", "PYTHONPATH": str(warm_start.HERE), "ROOM": room}
    command = [python, "-P", str(warm_start.HERE / "warm_server.py"), address, "workers", room]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield {**environment, warm_start.SERVER: address, "PYTHONPATH": warm_start.path_of_commands()}
        process.communicate()
