"""Print the command of the newest supported Python on this machine, except the version that runs this script.

python tools/ci/newest_python.py

An empty line means that there is no such Python. The script searches for `pythonX.Y` on PATH and among the versions of
pyenv. The supported versions are those in the classifiers of pyproject.toml (`VERSIONS`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)")
# The supported versions of Python, with the oldest first.
VERSIONS = [found[1] for line in PROJECT["classifiers"] if (found := _PYTHON.fullmatch(line))]


def torch_versions() -> tuple[str, str]:
    """Return the oldest and the newest supported torch version, such as `2.11`."""
    [oldest] = re.findall(r"^torch>=(\d+\.\d+)$", "\n".join(PROJECT["optional-dependencies"]["run"]), re.MULTILINE)
    [newest] = re.findall(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    return oldest, newest


def candidates(version: str) -> Iterator[str]:
    """Yield the commands that may start this version of Python."""
    if (command := shutil.which(f"python{version}")) is not None:
        yield command
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    installed = [path for path in pyenv.glob(f"{version}.*") if path.name.removeprefix(f"{version}.").isdigit()]
    for path in sorted(installed, key=lambda path: -int(path.name.removeprefix(f"{version}."))):
        yield str(path / "bin" / "python")


def works(command: str) -> bool:
    """Return True if the command can create a virtual environment. A pyenv shim without its Python version cannot."""
    try:
        started = subprocess.run([command, "-c", "import ensurepip, venv"], capture_output=True, check=False)
    except OSError:
        return False
    return started.returncode == 0


def newest_python() -> str | None:
    """Return the command of the newest supported Python that has another version than this Python, or None."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = [version for version in reversed(VERSIONS) if version != own]
    return next((command for version in others for command in candidates(version) if works(command)), None)


if __name__ == "__main__":
    print(newest_python() or "")
