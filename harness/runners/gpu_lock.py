"""One GPU, one run: a file lock keyed by the GPU's UUID, shared by all processes of a user on a machine."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import HarnessError


@contextmanager
def gpu_lock(uuid: str, announce: Callable[[str], None]) -> Iterator[None]:
    """Hold the GPU's lock. `announce` is told, once, when another run has it and this one waits."""
    from filelock import FileLock, Timeout  # comes with the extra `run`

    path = lock_path(uuid)
    _refuse_unlockable(path)
    lock = FileLock(path)
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
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise _unusable(directory, error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        got = f"owner {found.st_uid}" if stat.S_ISDIR(found.st_mode) else "a link"
        rule = "the lock directory must belong to this user"
        raise HarnessError(rule, where=str(directory), got=got, remedy="remove it, or set TMPDIR")
    return directory / (re.sub(r"[^0-9A-Za-z-]", "_", uuid) + ".lock")


def _refuse_unlockable(path: Path) -> None:
    """Raise HarnessError where the file cannot be locked at all, held or not: who waited would wait for ever."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except BlockingIOError:
        return  # another run has it
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> HarnessError:
    return HarnessError(
        "the lock of a GPU is a file that this user can write and lock",
        where=str(path),
        got=error.strerror or type(error).__name__,
        remedy="set TMPDIR to a folder of yours on a file system with locks",
    )
