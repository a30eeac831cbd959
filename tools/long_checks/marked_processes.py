"""Find and end processes by a mark, a variable that is in their environment from the start."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def marked(mark: str, others: set[int] | None = None) -> list[int]:
    """Return the running processes whose environment contains the mark `NAME=value`, without this process.

    others: processes that are known to lack the mark. Further processes without the mark are added to this set. A
    process starts with its parent's environment, so every child of a marked process has the mark from its start."""
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
            # the environment is empty while another program is replacing the process, so look again later
            known.add(int(name))
    return found


def left_after(mark: str, seconds: float) -> list[int]:
    """Return the marked processes that still run after `seconds`, and kill them."""
    until = time.monotonic() + seconds
    while (processes := marked(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    for each in processes:
        os.kill(each, signal.SIGKILL)
    return processes
