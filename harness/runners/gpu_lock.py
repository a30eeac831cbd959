"""One GPU, one run: a file lock keyed by the GPU's UUID, shared by all processes of a user on a machine."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import HarnessError


@contextmanager
def gpu_lock(uuid: str, announce: Callable[[str], None]) -> Iterator[None]:
    """Hold the GPU's lock. `announce` is told, once, when another run has it and this one waits."""
    from filelock import FileLock, Timeout  # comes with the extra `run`

    lock = FileLock(lock_path(uuid))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        announce(f"waiting for {uuid}: another run is using this GPU")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def lock_path(uuid: str) -> Path:
    """The lock's file, in a directory that belongs to this user alone; raises HarnessError when it does not."""
    directory = Path(tempfile.gettempdir()) / f"contract-harness-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid != os.getuid():
        raise HarnessError(
            "the lock directory must belong to this user",
            where=str(directory),
            got=f"owner {directory.stat().st_uid}",
            remedy="remove it, or set TMPDIR",
        )
    return directory / (re.sub(r"[^0-9A-Za-z-]", "_", uuid) + ".lock")
