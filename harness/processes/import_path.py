"""Keep the project's folders off a child's import path until the child has imported the harness.

Python runs a `sitecustomize.py` that it finds on its path before anything else. So a child starts with the path that
the command itself was started with, and the folders that the harness added since follow in a variable.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = (
    "CONTRACT_HARNESS_PATH"  # for a child: the path to use; in a child from then on: the path to start others with
)
_HARNESS = str(Path(__file__).resolve().parents[2])


def child_path() -> str:
    """Return the PYTHONPATH with which a process finds the modules that this process finds."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)


def path_at_start() -> str:
    """Return the PYTHONPATH that the command was started with, and with it the harness where Python would lack it.

    Python searches PYTHONPATH before its standard library. A folder of installed packages in it could hide a module of
    Python behind an old backport.
    """
    of_installed = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lacks = _HARNESS not in map(os.path.realpath, of_installed)
    given = os.environ.get("PYTHONPATH", "")
    return os.environ.get(VARIABLE) or os.pathsep.join(filter(None, (given, _HARNESS if lacks else "")))


def path_of_child(found: str | None) -> Mapping[str, str]:
    """Return the variables of a child: the path to start with and, for later, `found`.

    found: the whole path that the child is to use; None: the one that this process gives to its children.
    """
    return {"PYTHONPATH": path_at_start(), VARIABLE: os.environ.get("PYTHONPATH", "") if found is None else found}


def use_given_path() -> None:
    """Find modules from now on where the parent wants this child to find them. The child's own children do, too."""
    given, first = os.environ.get(VARIABLE), os.environ.get("PYTHONPATH", "")
    if given:
        os.environ.update({"PYTHONPATH": given, VARIABLE: first})
        sys.path[:] = dict.fromkeys([*given.split(os.pathsep), *sys.path])
