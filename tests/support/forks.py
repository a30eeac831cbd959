"""Fork a test's process: a fork has its imports at once, and does not affect it."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def begin(work: Callable[[], object]) -> int:
    """Start a fork that does the work with one torch thread (this process's threads are not in it); return its id."""
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
    """Wait until the process has ended; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
