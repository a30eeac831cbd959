"""An environment like a reader's, shared by the pages that are followed in it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import warm_server
import warm_start

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads of this tree: a build leaves its traces where it is made."""
    folder = tmp_path_factory.mktemp("copy") / "contract-harness"
    shutil.copytree(ROOT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile"):
        shutil.copy(ROOT / name, folder)
    return folder


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
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """All packages that are installed here, as links; and a wheel without files for each that the harness requires."""
    folder = tmp_path_factory.mktemp("known")
    (folder / "wheels").mkdir()
    for requirement in importlib.metadata.requires("contract-harness") or []:
        named = re.match(r"[\w-]+", requirement)
        with suppress(importlib.metadata.PackageNotFoundError):
            write_stub(named[0] if named else "", folder / "wheels")
    return others(folder / "others"), folder / "wheels"


def write_stub(name: str, folder: Path) -> None:
    """A wheel with the installed version of a package and none of its files."""
    stem = f"{name.replace('-', '_')}-{importlib.metadata.version(name)}"
    contents = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {importlib.metadata.version(name)}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for file, text in contents.items():
            wheel.writestr(f"{stem}.dist-info/{file}", text)
        wheel.writestr(f"{stem}.dist-info/RECORD", "".join(f"{stem}.dist-info/{file},,\n" for file in contents))


def made_environment(place: Path, known: tuple[Path, Path]) -> dict[str, str]:
    """Variables of a shell with an environment of its own, whose pip and uv ask no index."""
    packages_here, wheels = known
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, timeout=60)
    [packages] = place.glob("lib/*/site-packages")
    (packages / "others.pth").write_text(f"{packages_here}\n")
    pip = place / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{place}/bin/python" -m pip "$@"\n')  # pip is one of the others
    pip.chmod(0o755)
    configuration = place / "uv.toml"  # uv looks at no .pth file: to it nothing is installed
    configuration.write_text(f'[pip]\nno-index = true\nno-build-isolation = true\nfind-links = ["{wheels}"]\n')
    (place / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    left_out = ("PYTHON", "PIP_", "UV_", "GITHUB_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {
        **kept,
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(place),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it so: none, since setuptools would come from an index
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_COMPILE": "0",  # Python compiles what is imported
        "UV_CONFIG_FILE": str(configuration),
        "UV_CACHE_DIR": str(place / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.fixture(scope="session")
def new_environment(known: tuple[Path, Path]) -> Callable[[Path], dict[str, str]]:
    """Makes an environment at a place, and gives the variables of a shell with it."""
    return lambda place: made_environment(place, known)


@pytest.fixture(scope="session")
def environment(
    tmp_path_factory: pytest.TempPathFactory, new_environment: Callable[[Path], dict[str, str]]
) -> dict[str, str]:
    """An environment in which the pages that are followed install the harness."""
    return new_environment(tmp_path_factory.mktemp("environment") / ".venv")


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
