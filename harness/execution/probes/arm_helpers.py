"""Read how long the threads and child processes that an arm began have worked outside of its timed blocks.

A thread that Python began, and a child process, belong to the arm that was opened or stepped when it appeared;
a child of a child belongs to its parent's arm. Native threads (OpenMP's, autograd's) are pools of the process:
they work for whichever arm calls them, and belong to none. Linux alone has a clock of each thread and process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

# bound here, before a system is imported: it could replace them in their modules
from os import getpid, listdir
from threading import _DummyThread, main_thread
from threading import enumerate as python_threads
from time import clock_gettime

_OF_A_PROCESS, _OF_A_THREAD = 2, 6  # the kernel's CPUCLOCK_SCHED, without and with CPUCLOCK_PERTHREAD_MASK


class Helpers:
    """The threads and child processes of this process by the arm that began them; those of before belong to none."""

    def __init__(self) -> None:
        self._arms: dict[int, str | None] = dict.fromkeys(clock for clock, _ in _clocks())
        self._before: dict[str, dict[int, float]] = {}

    def note(self, arm: str) -> None:
        """Let everything that appeared since the last call belong to `arm`, and forget what has ended."""
        known, self._arms = self._arms, {}
        for clock, parent in _clocks():
            self._arms[clock] = known[clock] if clock in known else self._arms.get(parent, arm)

    def begin(self, arm: str) -> float | None:
        """Return the processor seconds of the arm's helpers since its last block ended; 0 before its first block.

        Call it right before a block of `arm` begins, and `end` right after. Return None where there are no clocks.
        """
        if sys.platform != "linux":
            return None
        before, now = self._before.get(arm), self._seconds(arm)
        if before is None:
            return 0.0
        return sum(max(0.0, worked - before.get(clock, 0.0)) for clock, worked in now.items())

    def end(self, arm: str) -> None:
        """Note what the arm's helpers have worked, those that appeared in its block included."""
        self.note(arm)
        self._before[arm] = self._seconds(arm)

    def _seconds(self, arm: str) -> dict[int, float]:
        worked = {}
        for clock, owner in self._arms.items():
            if owner == arm:
                with suppress(OSError):  # it has ended
                    worked[clock] = clock_gettime(clock)
        return worked


def _clocks() -> Iterator[tuple[int, int]]:
    """Yield the clock of each thread that Python began, and of each process below this one, with its parent's clock."""
    if sys.platform != "linux":
        return
    for thread in python_threads():
        # a native thread that has called Python is a dummy
        if thread.native_id is not None and thread is not main_thread() and not isinstance(thread, _DummyThread):
            yield _clock(thread.native_id, _OF_A_THREAD), 0
    yield from _below(getpid(), 0)


def _below(process: int, clock: int) -> Iterator[tuple[int, int]]:
    for task in _entries(f"/proc/{process}/task"):
        for child in _text(f"/proc/{process}/task/{task}/children").split():
            of_child = _clock(int(child), _OF_A_PROCESS)
            yield of_child, clock
            yield from _below(int(child), of_child)


def _clock(number: int, which: int) -> int:
    """Return the kernel's clock of a thread of this process, or of any process."""
    return (~number << 3) | which


def _entries(folder: str) -> list[str]:
    try:
        return listdir(folder)  # noqa: PTH208
    except OSError:  # it has ended
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123 - once for each of many threads
            return file.read()
    except OSError:
        return ""
