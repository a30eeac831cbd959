"""One GPU, one run: a file lock keyed by the GPU's UUID, shared by all processes of a user on a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.private_folder import private_folder, unusable


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


@contextmanager
def gpu_locks(uuids: Iterable[str], announce: Callable[[str], None]) -> Iterator[None]:
    """Hold the locks of several GPUs; always in one order, so that no two sessions wait for each other."""
    with ExitStack() as held:
        for uuid in sorted(set(uuids)):
            held.enter_context(gpu_lock(uuid, announce))
        yield


def lock_path(uuid: str) -> Path:
    """The lock's file, in a directory that belongs to this user alone; raises HarnessError when it does not."""
    return private_folder() / (re.sub(r"[^0-9A-Za-z-]", "_", uuid) + ".lock")


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
        raise unusable(path, error) from error
