"""The places of the harness's own files and folders in a run directory, where a system may have put something else.

What stands there is looked at and removed, and never opened: a pipe would be waited for, a link followed.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path


def kind(path: Path) -> str:
    """What stands there itself, links not followed."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # also where a part of the way to it is no folder any more
        return "nothing"
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFLNK: "a link"}
    return kinds.get(stat.S_IFMT(mode), "something else")


def remove(path: Path) -> None:
    """Remove whatever stands there."""
    found = kind(path)
    if found == "a folder":
        shutil.rmtree(path)
    elif found != "nothing":
        path.unlink()


def make_way(path: Path) -> None:
    """Remove what stands there, if it is no plain file."""
    if kind(path) != "a file":
        remove(path)


def own_folder(path: Path) -> None:
    """A folder at `path`; what else stands there goes away."""
    if kind(path) != "a folder":
        remove(path)
        path.mkdir(parents=True)


def empty_folder(path: Path) -> None:
    """An empty folder in the place of whatever stands there; where there is no way to it, of what stands in the way."""
    remove(path)
    for parent in path.parents:
        if kind(parent) != "nothing" and not parent.is_dir():
            parent.unlink()
    path.mkdir(parents=True)
