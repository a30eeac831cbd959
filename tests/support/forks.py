"""Forks of a test's process: what it has imported is there at once, and what the fork does is not seen here."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def begin(work: Callable[[], object]) -> int:
    """The process id of a fork that does the work, on one thread of torch: those of this process are not in it."""
    import torch

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # that this process has threads
        process = os.fork()
    if process:
        return process
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def end(process: int) -> int:
    """Its exit code, once it has ended; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
