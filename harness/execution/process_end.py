"""End a process that has executed a system: at once, and with the status that its evidence has.

A system may close the standard streams, or replace them by objects without `flush`, or with one
that raises. None of that makes evidence incomplete that is on disk.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

_end_threads = threading._shutdown  # type: ignore[attr-defined]
_exit = os._exit  # a system may put something else in its place
_STREAMS = ("stdout", "__stdout__", "stderr", "__stderr__")  # behind what stands there now are the interpreter's own


def end_process(status: int) -> NoReturn:
    """End this process without the interpreter's own end: a crash as CUDA ends must not void what was recorded."""
    for name in _STREAMS:  # what was printed so far goes where it belongs, as far as the streams let it
        with suppress(BaseException):
            getattr(sys, name).flush()
    _exit(status)


def end_threads() -> None:
    """Wait for all threads that are not daemons, and for executors, as an interpreter does before it ends.

    It has no public name; `multiprocessing` ends its processes by the same function.
    """
    _end_threads()
