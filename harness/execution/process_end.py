"""How a process that has executed a system ends: at once, and with the status that its evidence has.

The standard streams are the system's to close, or to replace by what has no `flush`, or one that raises; none of
that makes evidence incomplete that is on disk.
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
    """End without the interpreter's own end: a crash while CUDA tears down must not void what was recorded."""
    for name in _STREAMS:  # what was printed so far goes where it belongs, as far as the streams let it
        with suppress(BaseException):
            getattr(sys, name).flush()
    _exit(status)


def end_threads() -> None:
    """Wait for all threads that are no daemons, and for executors, as an interpreter does before it ends.

    There is no public name of it; `multiprocessing` ends its processes by the same one.
    """
    _end_threads()
