"""Choose where libraries keep compiled files: below the home folder, or below TMPDIR if that cannot be written.

Otherwise Matplotlib asks for another place with two lines on stderr, and Triton raises PermissionError.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness.errors import HarnessError

_BELOW_HOME = {"TRITON_CACHE_DIR": ".triton/cache", "MPLCONFIGDIR": ".config/matplotlib"}


def moved_caches(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return variables that move caches to a private folder; none if the home folder is writable, or they are set."""
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - where there is none it raises nothing
    moved = {
        name: place
        for name, place in _BELOW_HOME.items()
        if name not in environment and not _can_be_made(Path(home) / place)
    }
    if not moved or not hasattr(os, "getuid"):
        return {}
    try:
        # not another user's: what lies in Triton's cache is executed
        return {name: str(private_folder() / place.lstrip(".")) for name, place in moved.items()}
    except HarnessError:
        return {}


def _can_be_made(folder: Path) -> bool:
    """Return True if the folder can be written, or can be made where it does not exist."""
    if not folder.is_absolute():  # `~` stays as it is for a user without a home
        return False
    while not os.path.lexists(folder):
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def private_folder() -> Path:
    """Return this user's folder below TMPDIR; make it if missing. Raises HarnessError if it is not this user's own."""
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
    """Return the error that says why a lock's file or folder cannot be used."""
    return HarnessError(
        "the lock of a GPU is a file that this user can write and lock",
        where=str(path),
        got=error.strerror or type(error).__name__,
        remedy="set TMPDIR to a folder of yours on a file system with locks",
    )
