"""List what lies in a folder, following and trusting nothing: plain files, folders, and what is neither."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from harness.evidence.files import SIZE_LIMIT
from harness.run_directory.archive import LIMITS, TOP
from harness.run_directory.names import unfit

MOST = 100_000  # files and folders: a listing of an untrusted directory comes to an end
_LONGEST, _DEEPEST = LIMITS.name - len(TOP) - 1, LIMITS.depth - 1  # what fits into an archive, below its one folder


@dataclass
class Listing:
    """All that lies in a folder, by its path from there. `files`: plain ones, with their size in bytes; `unfit`: what
    no run directory holds (links, devices, names that not every system can write), and why.
    """

    files: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    unfit: dict[str, str] = field(default_factory=dict)


def listing(root: Path, leave_out: Collection[str] = ()) -> Listing:
    """Return what lies in `root`, without the names `leave_out` at its top."""
    found = Listing()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if name not in leave_out and _add(found, name, entry):
                        waiting.append(name)
        except OSError as error:
            found.unfit[folder or "."] = f"cannot be read: {error.strerror}"
        if len(found.files) + len(found.folders) + len(found.unfit) > MOST:
            found.unfit["."] = f"holds more than {MOST} files and folders"
            break
    return found


def _add(found: Listing, name: str, entry: os.DirEntry[str]) -> bool:
    """Add the entry to its list; return True if it is a folder to look into."""
    status = entry.stat(follow_symlinks=False)
    problem = unfit(name) or _too_long(name) or _kind(status)
    if problem is not None:
        found.unfit[name] = problem
    elif stat.S_ISDIR(status.st_mode):
        found.folders.add(name)
        return True
    else:
        found.files[name] = status.st_size
    return False


def _too_long(name: str) -> str | None:
    too_long = len(name.encode()) > _LONGEST or name.count("/") >= _DEEPEST
    return f"a path of more than {_LONGEST} bytes or {_DEEPEST} names" if too_long else None


def _kind(status: os.stat_result) -> str | None:
    """Return why it is not a plain file or a folder of its own; None where it is one."""
    if stat.S_ISDIR(status.st_mode):
        return None
    problems = {
        "a symbolic link": stat.S_ISLNK(status.st_mode),
        "a pipe, a socket or a device": not stat.S_ISREG(status.st_mode),
        "a hard link: the same file has another name": status.st_nlink > 1,
        "its owner may not read it": not status.st_mode & stat.S_IRUSR,
        f"{status.st_size} bytes, more than {SIZE_LIMIT}": status.st_size > SIZE_LIMIT,
    }
    return next((problem for problem, found in problems.items() if found), None)
