"""A folder of this user's own below the one for temporary files, for locks and caches that several processes share."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from harness.errors import HarnessError


def private_folder() -> Path:
    """The folder, made where it is not there. Raises HarnessError when it does not belong to this user alone."""
    name = f"contract-harness-{os.getuid()}"
    directory = Path(name)
    try:
        directory = Path(tempfile.gettempdir()) / name
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:  # also where there is no folder for temporary files at all
        raise unusable(directory, error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        got = f"owner {found.st_uid}" if stat.S_ISDIR(found.st_mode) else "a link"
        rule = "the lock directory must belong to this user"
        raise HarnessError(rule, where=str(directory), got=got, remedy="remove it, or set TMPDIR")
    return directory


def unusable(path: Path, error: OSError) -> HarnessError:
    """What is wrong with a lock's file or folder."""
    return HarnessError(
        "the lock of a GPU is a file that this user can write and lock",
        where=str(path),
        got=error.strerror or type(error).__name__,
        remedy="set TMPDIR to a folder of yours on a file system with locks",
    )
