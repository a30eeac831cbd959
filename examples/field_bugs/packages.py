"""Releases of other projects that entries use unchanged: one release with the bug, and one with the fix.

Two releases of one package cannot be installed side by side. So each has its own folder below the environment, which
`python tools/museum/install_field_bug_packages.py` fills; `installed` of an entry's `BUG` lists them for each form.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.field_bugs.bug import bug_of
from harness.errors import HarnessError

FOLDER = Path(sys.prefix) / "field-bug-packages"
INSTALL = "python tools/museum/install_field_bug_packages.py"


def folder_of(release: str) -> Path:
    """Return the folder of a release, installed or not: `…/transformers-4.45.2` of `transformers==4.45.2`."""
    return FOLDER / release.replace("==", "-")


def use_packages(entry: str, form: str) -> None:
    """Let this process import what the form of an entry (its `__file__`) needs, before the environment's own.

    Raises `HarnessError` for a release that is not installed, and where this process has imported another one.
    """
    bug = bug_of(Path(entry))
    releases = bug.installed[form] if bug else ()
    for release in reversed(releases):
        folder = folder_of(release)
        if not folder.is_dir():
            raise HarnessError(
                "an entry runs with the releases that it lists",
                where=f"{Path(entry).name}, {form}",
                got=f"no {release} in {FOLDER}",
                remedy=f"run `{INSTALL}`",
            )
        sys.path.insert(0, str(folder))
    for release in releases:
        _require_unimported(folder_of(release), release)


def _require_unimported(folder: Path, release: str) -> None:
    """Of what a release has for itself, a leading underscore, Python may have taken the environment's as it started."""
    for path in folder.iterdir():
        if path.name.startswith("_"):
            continue
        imported = sys.modules.get(path.stem) if path.name == path.stem or path.suffix == ".py" else None
        place = str(getattr(imported, "__file__", None) or folder)
        if not Path(place).is_relative_to(folder):
            raise HarnessError(
                "an entry imports its packages before anything else does",
                where=release,
                got=f"{path.stem} of {place}",
                remedy="try it in a process of its own",
            )
