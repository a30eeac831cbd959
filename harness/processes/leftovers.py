"""Find and kill what a process left behind that killed its keeper: the last resort.

Every process that it started has inherited a token in its environment, unless it was cleared.
"""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

TOKEN = "CONTRACT_HARNESS_RUN"  # noqa: S105 - the name of a variable
_PROCESSES = Path("/proc")


def new_token() -> str:
    """A value that no other kept process carries."""
    return secrets.token_hex(16)


def kill_marked(token: str) -> list[int]:
    """SIGKILL every process of this user that carries the token; their ids. Linux only, else none are found."""
    mark = f"{TOKEN}={token}".encode()
    killed: list[int] = []
    for entry in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile, or belongs to another user
    return killed
