"""Manage the folder with what a run's system saved. It lies in the run's directory, but is not
evidence: nothing in it is read here, and it is removed when the run ends.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from harness.evidence import layout


def checkpoint_path(directory: Path, steps: int) -> Path:
    """Return the path at which the run's system saves after `steps` steps, and make the folder that holds it."""
    folder = directory.resolve() / layout.CHECKPOINT
    folder.mkdir(exist_ok=True)
    return folder / f"after-{steps}-steps"


def size_of(path: Path) -> tuple[int, int]:
    """Return the number and the bytes of the files that a system wrote to `path` and below it, without links."""
    found = [path, *(Path(folder, name) for folder, _, names in os.walk(path) for name in names)]
    sizes = [status.st_size for each in found if (status := _status(each)) and stat.S_ISREG(status.st_mode)]
    return len(sizes), sum(sizes)


def remove_checkpoint(directory: Path) -> None:
    """Remove the folder and all that a system put there, or in its place. What this user may not remove stays."""
    folder = directory / layout.CHECKPOINT
    status = _status(folder)
    if status is None:
        return
    with suppress(OSError):
        if not stat.S_ISDIR(status.st_mode):
            folder.unlink()
            return
        folder.chmod(stat.S_IRWXU)
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                if not (inside := Path(parent, name)).is_symlink():
                    inside.chmod(stat.S_IRWXU)  # what is in a folder that nothing may change could not be removed
        shutil.rmtree(folder)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
