"""A limit that passes in a moment, once a worker hangs: no test waits it out, and none depends on a machine's speed."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

from harness.runners.recorder import HEARTBEAT

STILL_S = 0.3  # without a beat; a worker that is only slow comes to the same end in the same phase
LOOK_S = 0.05


def clock_of_limits(folder: Path, phase: str, seconds: float) -> SimpleNamespace:
    """The module `time` for `harness.runners.watched_worker`.

    It is so many seconds ahead from when a worker whose evidence lies below `folder` stands still in that phase.
    """
    ahead = looked = 0.0

    def monotonic() -> float:
        nonlocal ahead, looked
        now = time.monotonic()
        if not ahead and now > looked + LOOK_S:
            looked = now
            ahead = seconds * any(_stands_still(path, phase) for path in folder.rglob(HEARTBEAT))
        return now + ahead

    return SimpleNamespace(monotonic=monotonic)


def _stands_still(heartbeat: Path, phase: str) -> bool:
    try:
        return heartbeat.read_text().startswith(f"{phase}\n") and time.time() - heartbeat.stat().st_mtime > STILL_S
    except OSError:  # it is removed behind the end
        return False
