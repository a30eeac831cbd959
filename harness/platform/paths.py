"""Refuse paths on a command line that do not exist, and make the working directory importable."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from harness.errors import UsageError


def require_existing(paths: Iterable[Path]) -> None:
    """Raise UsageError that lists the paths which do not exist, and suggests a name for the first of them."""
    missing = [path for path in paths if not os.path.lexists(path)]  # a link that leads nowhere is there
    if missing:
        rule, where = "a path that is named must exist", ", ".join(map(str, missing))
        raise UsageError(rule, where=where, got="nothing there", remedy=_remedy(missing[0]))


def _remedy(path: Path) -> str:
    """Suggest the existing name that was probably meant, or show how far the path can be followed."""
    there = next((parent for parent in path.parents if parent.is_dir()), None)
    if there is None:
        return "check the path"
    name = path.relative_to(there).parts[0]
    try:
        beside = sorted(each.name for each in there.iterdir())
    except OSError:
        return "check the path"
    close = difflib.get_close_matches(name, beside, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{there / close[0]}`?"
    return f"`{there.resolve() if str(there) == '.' else there}` has no `{name}`"


def add_working_directory() -> None:
    """Make the working directory importable, as `python -m` does, but last, so that it hides no installed package.

    A contract next to its trainer can then name the trainer without any installation.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def without_folders(text: str) -> str:
    """Return `text` with paths made relative to module folders, the working folder, and the interpreter."""
    roots = {*sys.path, str(Path.cwd()), sys.prefix, sys.base_prefix} - {"", "/"}
    for root in sorted(roots, key=len, reverse=True):
        text = text.replace(f"{root.rstrip('/')}/", "")
    return text
