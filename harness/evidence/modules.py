"""Find the files of modules without importing them. Decide whether a file belongs to the user, to the harness or to a
library."""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")
_STANDARD = Path(os.path.realpath(os.__file__)).parent
_HARNESS = Path(os.path.realpath(__file__)).parents[1]


def module_spec(name: str) -> ModuleSpec | None:
    """Return a module's spec, or None if the module is not found. Neither the module nor a package that contains it is
    imported."""
    package, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # Search by the last part of the name. For a folder without `__init__.py`, a search by the full name works only
        # if the parent package has been imported.
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


def module_installed(name: str) -> bool:
    """Return True if a module can be found. Neither the module nor a package that contains it is imported."""
    return module_spec(name) is not None


def places_of(package: str) -> list[Path]:
    """Return the folders of a package or the file of a module; an empty list if it is not found. package: a name
    without dots."""
    spec = module_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin is not None else []


def place_in(folder: Path, package: str) -> Path | None:
    """Return the path at which Python would find a package or module in this folder, or None if there is none."""
    below, file = folder / package, folder / f"{package}.py"
    module = os.path.isfile(file)  # noqa: PTH113 - no error where the folder may not be read
    if os.path.isfile(below / "__init__.py") or (os.path.isdir(below) and not module):  # noqa: PTH112, PTH113
        return below
    return file if module else None


def is_users(place: Path) -> bool:
    """Return True if a file or folder is the user's code and not part of the harness or of a library."""
    return not is_harness(place) and not is_library(place)


@cache
def is_harness(place: Path) -> bool:
    """Return True if a file belongs to the harness, in a checkout or installed from a wheel."""
    return Path(os.path.realpath(place)).is_relative_to(_HARNESS)


def is_library(place: Path) -> bool:
    """Return True if a file or folder belongs to an installed package, or to Python itself."""
    real = Path(os.path.realpath(place))
    return real.is_relative_to(_STANDARD) or is_installed(real)


def is_installed(place: Path) -> bool:
    """Return True if a file or folder belongs to an installed package: it is below `site-packages`, or `is_recorded`.

    Links are followed first, because a user's own package may be linked into `site-packages`.
    """
    real = Path(os.path.realpath(place))
    return any(part in INSTALLED for part in real.parts) or is_recorded(real)


def is_recorded(place: Path) -> bool:
    """Return True if an installer recorded this path as installed.

    The record is in one of the folders above the path. This folder can have any name, for example the target of `pip
    install --target`, or the folder of an unpacked wheel.
    """
    above = reversed(place.parents)  # the root first
    return any(name in recorded_in(folder) for folder, name in zip(above, place.parts[1:], strict=False))


@cache
def recorded_in(folder: Path) -> frozenset[str]:
    """Return the names in a folder that belong to installed packages, according to the `RECORD` files of these
    packages.

    See https://packaging.python.org/specifications/recording-installed-packages.
    """
    names: set[str] = set()
    with suppress(OSError):  # a folder that this user may not read counts as empty
        for entry in os.scandir(folder):
            if entry.name.endswith(".dist-info"):
                with suppress(OSError):
                    record = (folder / entry.name / "RECORD").read_text("utf-8", "replace")
                    names.update(line.replace(",", "/").partition("/")[0] for line in record.splitlines())
    return frozenset(names - {"", "..", "__pycache__"})
