"""Measure how fast a processor works just now: the processor time of a thread for a fixed piece of Python.

What shares a core with this process (the other hyperthread, often of a neighbour that no list of
processes shows), or lowers its clock, slows every step that the host enqueues. Waiting for a
processor or for the interpreter's lock is not counted.
"""

from __future__ import annotations

import math

# bound here, before a system is imported: it could replace them in their modules
from os import listdir
from threading import get_native_id
from time import process_time_ns, thread_time_ns

from harness.evidence.run_records import Block, disturbed

PASSES = 20_000  # about a millisecond
LOOKS = 5
OWN_SHARE = 0.1  # of the piece's own time: chosen, above what counting itself costs


def pace() -> float | None:
    """Return the seconds of the piece; None if other threads of this process, which are no neighbour, worked too."""
    process, thread = process_time_ns(), thread_time_ns()
    value = 0
    for number in range(PASSES):
        value += number * number
    thread = thread_time_ns() - thread
    others = process_time_ns() - process - thread
    return thread / 1e9 if others <= OWN_SHARE * thread and not _others_work() else None


def _others_work() -> bool:
    """Return True if another thread of this process is about to work: Linux counts its time a clock tick late."""
    own = str(get_native_id())
    try:
        return any(_works(thread) for thread in listdir("/proc/self/task") if thread != own)  # noqa: PTH208
    except FileNotFoundError:  # not on Linux
        return False


def _works(thread: str) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:  # noqa: PTH123 - once for each of many threads
            return file.read().rpartition(b") ")[2].startswith(b"R")
    except OSError:  # it has ended
        return False


class Paces:
    """The paces of one process, and their least so far: what its processor does when nothing else works on it."""

    def __init__(self) -> None:
        self.least = math.inf

    def measure(self) -> float | None:
        """Measure the pace once more and return it; None as for `pace`."""
        measured = pace()
        self.least = min(self.least, measured or math.inf)
        return measured

    def look(self) -> None:
        """Measure a few times for the least pace alone, which takes a few milliseconds."""
        for _ in range(LOOKS):
            self.measure()

    def disturbed(self, block: Block) -> bool:
        """Return True if something else worked during this block, as far as this process can know."""
        return block.pace is not None and disturbed(block.pace, self.least)


def slower(one: float | None, other: float | None) -> float | None:
    """Return the slower of two paces; None if either is not known."""
    return None if one is None or other is None else max(one, other)
