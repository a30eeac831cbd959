"""Read the states of processes from /proc."""

from __future__ import annotations

import re
from pathlib import Path

from waiting import eventually


def state(process: int) -> str:
    """Return a letter: `R` running, `S` sleeping, `T` stopped, `Z` ended but not waited for; "" if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def pending(process: int) -> set[int]:
    """Return the numbers of the signals that were sent to a process and have not reached it."""
    [text] = re.findall(r"^ShdPnd:\t(.+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return {number for number in range(1, 65) if int(text, 16) & 1 << (number - 1)}


def await_end(*processes: int) -> None:
    """Wait until the processes have ended: a signal takes effect only when the kernel next runs its process."""
    eventually(lambda: all(state(process) in ("", "Z") for process in processes), f"processes {processes} have ended")
