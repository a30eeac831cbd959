"""Find and end processes by a mark. The mark is an environment variable that the processes have from their start."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def marked(mark: str, others: set[int] | None = None) -> list[int]:
    """Return the ids of running processes, other than this one, whose environment contains the mark `NAME=value`. Child
    processes inherit the mark. others: ids of processes known not to have the mark; this function adds more."""
    text, known = mark.encode(), set() if others is None else others
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - callers look a thousand times a second
        if not name.isdigit() or int(name) in known or int(name) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:  # the process has ended, or belongs to another user
            continue
        if text in environment.split(b"\0"):
            found.append(int(name))
        elif environment:
            # The environment is empty while a process starts another program. Do not record such a process as unmarked.
            known.add(int(name))
    return found


def left_after(mark: str, seconds: float) -> list[int]:
    """Wait up to `seconds` for the marked processes to end. Kill those that still run, and return their ids."""
    until = time.monotonic() + seconds
    while (processes := marked(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    for each in processes:
        os.kill(each, signal.SIGKILL)
    return processes
