"""Leave a process's stacks in its run's directory: at a crash, at SIGTERM, and whenever its supervisor asks.

faulthandler writes them from a signal handler, so that a process which never returns to Python leaves them, too.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from pathlib import Path

from harness.evidence.files import Damaged, read_bytes
from harness.system.raised import without_folders

STACKS = "stack.txt"
STACK_EXCERPT = 8000  # characters
STACKS_LIMIT = 2**20  # bytes
THREADS = "threads"  # `threads.<process id>`: what a process shows of its threads when it is asked
# A signal that programs do not use. None where a system has none: macOS.
SHOW: int | None = getattr(signal, "SIGRTMAX", 2) - 2 or None


def leave_stacks(directory: Path) -> None:
    """Let this process write its stacks into `directory` from now on."""
    # open until the process ends: faulthandler writes to them from signal handlers
    stacks = (directory / STACKS).open("a", encoding="utf-8")
    faulthandler.enable(stacks)
    # a process that hangs gets SIGTERM first: it leaves its stack, then the default action ends it
    faulthandler.register(signal.SIGTERM, stacks, chain=True)
    if SHOW is not None:
        shown = directory / f"{THREADS}.{os.getpid()}"
        unnamed = directory / f"new-{shown.name}"  # others of its run begin at the same time
        faulthandler.register(SHOW, unnamed.open("a", encoding="utf-8"))
        unnamed.rename(shown)  # under this name it says that the signal will not end the process


class LeftStacks:
    """The stacks of a process that begins now, in a file that may hold those of an earlier one."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STACKS
        self._begin = len(self._bytes())

    def read(self) -> str:
        """Return the stacks at a crash or at SIGTERM, most recent call first."""
        text = self._bytes()[self._begin :].decode("utf-8", "replace")
        return without_folders(text)[:STACK_EXCERPT]

    def _bytes(self) -> bytes:
        with suppress(Damaged):
            return read_bytes(self._path, STACKS_LIMIT)
        return b""
