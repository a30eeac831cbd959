"""Time limits that pass at once when a worker hangs: no test waits for them or depends on a machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from harness.execution.recorder import HEARTBEAT

STILL_S = 0.3  # without a beat; a worker that is only slow comes to the same end in the same phase
LOOK_S = 0.05


def clock_of_limits(folder: Path, phase: str, seconds: float) -> SimpleNamespace:
    """Return a substitute for the module `time`, for `harness.execution.watched_worker`.

    Its clock jumps ahead by `seconds` when a worker with evidence below `folder` makes no progress in that phase.
    """
    return clock_ahead(lambda: any(_stands_still(path, phase) for path in folder.rglob(HEARTBEAT)), seconds)


def clock_ahead(since: Callable[[], bool], seconds: float) -> SimpleNamespace:
    """Return a substitute for the module `time`, whose clock stands still until `since` is true, then jumps ahead."""
    began = time.monotonic()
    looked, stood = began, 0.0  # when it looked last; how long it stood

    def monotonic() -> float:
        nonlocal looked, stood
        now = time.monotonic()
        if not stood and now > looked + LOOK_S:
            looked = now
            stood = (now - began) * since()
        return now - stood + seconds if stood else began

    return SimpleNamespace(monotonic=monotonic, sleep=time.sleep)


def clock_of_jumps(since: Callable[[], bool], seconds: float) -> SimpleNamespace:
    """Return a substitute for the module `time`, whose clock stands still, and jumps ahead whenever `since` is true."""
    looked, shown = time.monotonic(), 0.0

    def monotonic() -> float:
        nonlocal looked, shown
        if time.monotonic() > looked + LOOK_S:
            shown += seconds * since()
            looked = time.monotonic()
        return shown

    return SimpleNamespace(monotonic=monotonic, sleep=time.sleep)


def _stands_still(heartbeat: Path, phase: str) -> bool:
    try:
        return heartbeat.read_text().startswith(f"{phase}\n") and time.time() - heartbeat.stat().st_mtime > STILL_S
    except OSError:  # it is removed behind the end
        return False
