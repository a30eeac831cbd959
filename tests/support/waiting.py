"""Wait for an event. A test waits for what it must see, not for a time in which that usually happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from harness.errors import EvidenceError

LIMIT_S = 120.0  # it only bounds a hang: a busy machine takes seconds for what an idle one does at once
LOOK_S = 0.01
Seen = TypeVar("Seen")


class Process(Protocol):
    """A process like `subprocess.Popen`."""

    def poll(self) -> int | None: ...


def eventually(seen: Callable[[], Seen], what: str, of: Process | None = None) -> Seen:
    """Return what `seen` returns as soon as that is true.

    A look at a file that another process moves at the same time counts as not seen. Raises AssertionError after
    `LIMIT_S`, or if the process `of`, which is to cause the event, has ended.
    """
    until = time.monotonic() + LIMIT_S
    ended, problem = False, ""
    while True:
        try:
            if value := seen():
                return value
        except (OSError, EvidenceError) as error:
            problem = f" ({error})"
        assert not ended, f"the process ended before this: {what}{problem}"
        assert time.monotonic() < until, f"not within {LIMIT_S:g} s: {what}{problem}"
        ended = of is not None and of.poll() is not None  # it may have happened since the last look
        time.sleep(LOOK_S)
