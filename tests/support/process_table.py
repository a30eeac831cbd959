"""Which processes are there, as /proc has them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path


def state(process: int) -> str:
    """One letter: `R` running, `S` sleeping, `T` stopped, `Z` ended and not yet taken leave of; nothing: gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def still_alive(processes: Sequence[int], seconds: float = 5.0) -> list[int]:
    """Those that are alive so long after their kill: a signal takes effect when the kernel next schedules them."""
    deadline = time.monotonic() + seconds
    while (alive := [process for process in processes if state(process) not in ("", "Z")]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.02)
    return alive
