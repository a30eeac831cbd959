"""Substitutes for the project's dependencies, so that pip resolves them without a package index.

Each distribution becomes a wheel with its name, version and empty top-level modules. `offline_backend.py` builds the
project. Pip then installs, for each extra, what it would install from an index.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

_BUILD = '[build-system]\nrequires = []\nbuild-backend = "offline_backend"\nbackend-path = ["."]\n\n'
_PINNED = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def offline_checkout(root: Path, folder: Path) -> dict[str, str]:
    """Write the project's metadata and constraints into `folder`; return the environment variables for pip."""
    metadata = (root / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(_BUILD + metadata[metadata.index("[project]") :])
    shutil.copy(Path(__file__).with_name("offline_backend.py"), folder)
    constraints = (root / "constraints.txt").read_text()
    (folder / "constraints.txt").write_text(constraints)
    wheels = folder / "wheels"
    wheels.mkdir()
    versions = {_normalized(name): version for name, version in _PINNED.findall(constraints)}
    modules = _modules()
    for name in _required(tomllib.loads(metadata)["project"]) & modules.keys():
        write_wheel(wheels, name, versions.get(name) or importlib.metadata.version(name), modules[name])
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}


def write_wheel(folder: Path, name: str, version: str, modules: Sequence[str]) -> None:
    """Write a wheel of empty modules for any Python."""
    stem = f"{name.replace('-', '_')}-{version}"
    contents = {f"{module}.py": "" for module in modules} | {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}.dist-info/RECORD"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, text in contents.items():
            wheel.writestr(path, text)
        wheel.writestr(record, "".join(f"{path},,\n" for path in (*contents, record)))


def _required(project: dict[str, dict[str, list[str]]]) -> set[str]:
    """Return the normalized names of all requirements of all extras."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return {_normalized(re.split(r"[^\w.-]", requirement)[0]) for group in groups for requirement in group}


def _modules() -> dict[str, list[str]]:
    """Return top-level modules by the normalized name of the installed distribution that has them."""
    found: dict[str, list[str]] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for name in set(distributions):
            if module.isidentifier():
                found.setdefault(_normalized(name), []).append(module)
    return found


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
