"""Start interpreters ahead: each imports torch while others work, touches no device, and waits for a run.

They are started, not forked: a fork would share the parent's threads, its CUDA context if it had
one, its addresses and, in /proc, its environment.
"""

from __future__ import annotations

import os
import threading
from typing import Self

from harness.devices.environment import usable_cores
from harness.execution.worker import AHEAD
from harness.platform.paths import moved_caches
from harness.processes.child import Child, start_child

AHEAD_PER_CORES = 4
REPEATED = "1"  # hash seed of repetitions; that of all other processes is 0


def start(*, ahead: bool = False, repeats: bool = False) -> Child:
    """Start a worker process that has no run yet. ahead: it imports what most runs need while it waits.

    repeats: for repetitions, whose hash seed differs from that of the runs that they repeat.
    """
    # CUBLAS_WORKSPACE_CONFIG stays as it is: set to torch's own default for sm_90, `:4096:8`, it made torch 2.11
    # parse it at every GEMM, and an eager step of 28 layers took 54 ms instead of 36 on an H200
    variables = {
        # threads that spin while they wait make a shared machine several times slower
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        **moved_caches(),
        **({"PYTHONHASHSEED": REPEATED} if repeats else {}),
    }
    return start_child("harness.execution.worker", *([AHEAD] if ahead else []), kept=True, variables=variables)


class Interpreters:
    """A few of them wait at a time, and never more than there are runs to come; a context manager."""

    def __init__(self, expected: int | None = None) -> None:
        # an import takes a processor for seconds, and keeps it from the runs under way
        self._ahead = max(1, usable_cores() // AHEAD_PER_CORES)
        self._expected = self._ahead if expected is None else expected
        self._waiting: list[Child] = []
        self._lock = threading.Lock()
        self._stopped = self._closed = False

    def begin(self) -> None:
        """Start some interpreters now, before it is known which runs they are for."""
        self._fill()

    def expect(self, runs: int) -> None:
        """Note how many runs will take a waiting interpreter, and end the surplus."""
        with self._lock:
            self._expected = runs
            surplus = self._waiting[runs:]
            del self._waiting[runs:]
        for child in surplus:
            child.close()

    def take(self, *, repeats: bool = False) -> Child:
        """Return an interpreter for a run: the one that has waited longest or, if none waits, a new one."""
        if repeats:
            return start(repeats=True)
        with self._lock:
            self._expected -= 1
            taken = self._waiting.pop(0) if self._waiting else None
        self._fill()
        return taken or start()

    def stop(self) -> None:
        """Stop the interpreters that wait or still import, and start no more."""
        with self._lock:
            self._stopped = True
            for child in self._waiting:
                child.stop()

    def resume(self) -> None:
        """Let the stopped interpreters continue, and start more."""
        with self._lock:
            if not self._stopped:
                return
            self._stopped = False
            for child in self._waiting:
                child.resume()
        self._fill()

    def close(self) -> None:
        """End the interpreters that no run has taken."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for child in waiting:
            child.close()

    def _fill(self) -> None:
        with self._lock:
            while not (self._stopped or self._closed) and len(self._waiting) < min(self._ahead, self._expected):
                self._waiting.append(start(ahead=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
