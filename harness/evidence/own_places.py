"""Prepare places of the harness's own files and folders in a run directory, where a system may have put something else.

What lies at such a place is examined and removed, and never opened: opening would wait for a pipe, or follow a link.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path


def kind(path: Path) -> str:
    """Return what lies at the path itself, without following links."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # also where a part of the way to it is not a folder any more
        return "nothing"
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFLNK: "a link"}
    return kinds.get(stat.S_IFMT(mode), "something else")


def remove(path: Path) -> None:
    """Remove whatever lies at the path."""
    found = kind(path)
    if found == "a folder":
        shutil.rmtree(path)
    elif found != "nothing":
        path.unlink()


def make_way(path: Path) -> None:
    """Remove what lies at the path, unless it is a plain file."""
    if kind(path) != "a file":
        remove(path)


def own_folder(path: Path) -> None:
    """Make a folder at `path`; remove anything else that lies there."""
    if kind(path) != "a folder":
        remove(path)
        path.mkdir(parents=True)


def empty_folder(path: Path) -> None:
    """Make an empty folder at the path, removing what lies there, and what blocks the way to it."""
    remove(path)
    for parent in path.parents:
        if kind(parent) != "nothing" and not parent.is_dir():
            parent.unlink()
    path.mkdir(parents=True)
