"""Handle paths on this machine: paths from a command line, and folders of caches. This module also returns the command
that installs an extra (an optional part of the harness).

Caches of libraries are below the home folder. If the home folder is not writable, the caches are moved below TMPDIR.
Otherwise Matplotlib would print a warning on stderr, and Triton would raise PermissionError.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from harness.errors import HarnessError, UsageError


def require_existing(paths: Iterable[Path]) -> None:
    """Raise UsageError if some of the paths do not exist. The error lists these paths, and gives advice for the first
    of them."""
    missing_paths = [path for path in paths if not os.path.lexists(path)]  # a broken link counts as existing
    if missing_paths:
        paths_must_exist, where = "the path must exist", ", ".join(map(str, missing_paths))
        raise UsageError(paths_must_exist, where=where, got="nothing there", remedy=_remedy(missing_paths[0]))


def _remedy(path: Path) -> str:
    """Return advice for a path that does not exist: an existing name that is similar, or the deepest folder of the path
    that exists."""
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
    """Make the working directory importable, as `python -m` does. It is searched last, so that its modules hide no
    other modules.

    A contract can then name a trainer in the working directory without any installation.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def without_folders(text: str) -> str:
    """Return `text` with shorter paths. Each path in a folder of the import path, in the working directory or in
    Python's folder becomes relative to that folder."""
    roots = {*sys.path, str(Path.cwd()), sys.prefix, sys.base_prefix} - {"", "/"}
    for root in sorted(roots, key=len, reverse=True):
        text = text.replace(f"{root.rstrip('/')}/", "")
    return text


_BELOW_HOME = {"TRITON_CACHE_DIR": ".triton/cache", "MPLCONFIGDIR": ".config/matplotlib"}


def moved_caches(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables that move caches of libraries to a private folder.

    A variable is left out if it is already set, or if its default folder below the home folder is writable.
    """
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - where there is none it raises nothing
    moved = {
        name: place
        for name, place in _BELOW_HOME.items()
        if name not in environment and not _can_be_made(Path(home) / place)
    }
    if not moved or not hasattr(os, "getuid"):
        return {}
    try:
        # A folder that another user owns must not be used, because files in Triton's cache are executed.
        return {name: str(private_folder() / place.lstrip(".")) for name, place in moved.items()}
    except HarnessError:
        return {}


def _can_be_made(folder: Path) -> bool:
    """Return True if the folder is writable, or can be created."""
    if not folder.is_absolute():  # without a home folder, `expanduser` leaves `~` in the path
        return False
    while not os.path.lexists(folder):
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def private_folder() -> Path:
    """Return this user's folder below TMPDIR. Create it if missing. Raise HarnessError if another user owns it."""
    import tempfile

    name = f"contract-harness-{os.getuid()}"
    directory = Path(name)
    try:
        directory = Path(tempfile.gettempdir()) / name
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:  # without any temporary folder, this error occurs too
        raise unusable(directory, error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        owner_or_link = f"owner {found.st_uid}" if stat.S_ISDIR(found.st_mode) else "a link"
        directory_must_be_yours = "the lock directory must belong to this user"
        raise HarnessError(
            directory_must_be_yours,
            where=str(directory),
            got=owner_or_link,
            remedy="remove the directory, or set TMPDIR",
        )
    return directory


def unusable(path: Path, error: OSError) -> HarnessError:
    """Return a HarnessError that states why `path` cannot be used. path: the file or folder of a GPU's lock."""
    return HarnessError(
        "the lock of a GPU must be a file that this user can write and lock",
        where=str(path),
        got=error.strerror or type(error).__name__,
        remedy="set TMPDIR to your own folder on a file system that supports locks",
    )


_OF_EXTRA = r"""\s*;\s*(?P<other>.*?)(?:\s+and\s+)?extra\s*==\s*["'](?P<extra>[\w-]+)["']\s*$"""


def command_for(extra: str) -> str:
    """Return the command that installs the packages of an extra (an optional part of the harness), such as `run`."""
    # Import `metadata` here and not at the top: the import is slow, and every process that describes systems imports
    # this module.
    from importlib import metadata

    try:
        listed = metadata.requires("contract-harness") or []
    except metadata.PackageNotFoundError:  # the harness runs from a source tree and is not installed
        return f"pip install '.[{extra}]'"
    found = [(text, match) for text in listed if (match := re.search(_OF_EXTRA, text)) and match["extra"] == extra]
    packages = [text[: match.start()] + (f"; {match['other']}" if match["other"] else "") for text, match in found]
    installer = ["pip"] if find_spec("pip") is not None else ["uv", "pip"]  # environments that `uv` created have no pip
    return shlex.join([*installer, "install", *packages])
