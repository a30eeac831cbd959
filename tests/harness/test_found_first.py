"""A file that Python finds before a module that the harness needs: an error that names it, and no code of a verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from budget import slow_but

from harness.commands.found_first import REMEDY

ROOT = Path(__file__).parents[2]
PYTHON, INSTALLED = "Python's own", "the installed"
FOUND = {
    "random.py": PYTHON,
    "signal.py": PYTHON,
    "typing.py": PYTHON,
    "traceback.py": PYTHON,
    "yaml.py": INSTALLED,
    "numpy.py": INSTALLED,
    "typer/__init__.py": INSTALLED,
}
# imported only where a command judges, or draws: what it raises there
LATER = {
    "rich.py": (INSTALLED, "from rich.console import Console"),
    "logging/__init__.py": (PYTHON, "import logging; logging.getLogger"),
    "queue.py": (PYTHON, "from queue import Queue"),
}
TELL = "from harness.commands.found_first import found_first\n"
ENDS = ["import sys; sys.exit(0)", "1 / 0", "import sys; sys.exit('no')"]


def harness(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-P", "-m", "harness", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def told(folder: Path, program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path.parent if path.name == "__init__.py" else path


@pytest.mark.parametrize("name", slow_but(["random.py", "yaml.py", "traceback.py", "numpy.py"], FOUND))
def test_a_file_that_is_found_first_is_named(tmp_path: Path, name: str) -> None:
    found = put(tmp_path, name, "X = 1\n")
    done = harness(tmp_path, "doctor" if name in {"numpy.py", "signal.py"} else "check", ROOT / "contracts")
    said = f"{found} is found before {FOUND[name]} {found.stem}; {REMEDY}"
    assert said in done.stderr
    assert done.returncode == 12


@pytest.mark.parametrize("name", LATER)
def test_one_that_is_imported_later_is_named(tmp_path: Path, name: str) -> None:
    found = put(tmp_path, name, "X = 1\n")
    which, statement = LATER[name]
    program = f"{TELL}try:\n    {statement}\nexcept Exception as error:\n    print(found_first(error))"
    assert told(tmp_path, program) == f"{found} is found before {which} {found.stem}; {REMEDY}\n"


@pytest.mark.parametrize("name", ["random.py", "yaml.py"])
@pytest.mark.parametrize("text", ENDS)
def test_one_that_ends_the_process_gives_no_verdict(tmp_path: Path, name: str, text: str) -> None:
    found = put(tmp_path, name, f"{text}\n")
    done = harness(tmp_path, "check", ROOT / "contracts")
    assert (done.returncode, f"{found} is found before" in done.stderr) == (12, True), done.stderr


def test_what_cannot_be_imported_for_another_reason_is_an_error_in_a_line(tmp_path: Path) -> None:
    for path in (ROOT / "harness" / "__init__.py", *(ROOT / "harness").glob("__main__.py")):
        put(tmp_path, f"harness/{path.name}", path.read_text())
    (tmp_path / "harness" / "commands").mkdir()
    for name in ("__init__", "first_signals", "found_first"):
        put(tmp_path, f"harness/commands/{name}.py", (ROOT / "harness" / "commands" / f"{name}.py").read_text())
    done = harness(tmp_path, "check", "contracts")
    said = "error: the harness is imported and started; found ModuleNotFoundError: No module named"
    assert done.stderr.startswith(said), done.stderr
    assert done.stderr.endswith("its installation is not whole\n")
    assert (done.returncode, done.stderr.count("\n")) == (12, 1)


def test_its_own_files_are_not_named(tmp_path: Path) -> None:
    """Of an error in a harness that is worked on, with what is installed where it is installed."""
    program = f"{TELL}import logging, json, numpy, yaml, typer, pydantic, distutils.core\n"
    program += "try:\n    import json.nothing\nexcept ImportError as error:\n    print(found_first(error))"
    assert told(tmp_path, program) == "None\n"
