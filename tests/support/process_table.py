"""Which processes are there, as /proc has them."""

from __future__ import annotations

import re
from pathlib import Path

from waiting import eventually


def state(process: int) -> str:
    """One letter: `R` running, `S` sleeping, `T` stopped, `Z` ended and not yet taken leave of; nothing: gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def pending(process: int) -> set[int]:
    """Return the numbers of the signals that were sent to a process and have not reached it."""
    [text] = re.findall(r"^ShdPnd:\t(.+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return {number for number in range(1, 65) if int(text, 16) & 1 << (number - 1)}


def await_end(*processes: int) -> None:
    """Wait until none is alive: a signal takes effect when the kernel next gives its process a turn."""
    eventually(lambda: all(state(process) in ("", "Z") for process in processes), f"processes {processes} have ended")
