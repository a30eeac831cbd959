"""Interpreters started ahead: each imports torch while others work, touches no device, and waits for a run.

Started, not forked: a fork would share the parent's threads, its CUDA context if it had one, its addresses and, in
/proc, its environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from dataclasses import dataclass, replace
from time import monotonic
from types import TracebackType
from typing import IO, Self, cast

from harness.caches import moved_caches
from harness.evidence.environment import usable_cores
from harness.processes.kept import KeptProcess
from harness.python_path import child_command, child_path
from harness.runners.line import Line, pair
from harness.runners.worker import AHEAD

AHEAD_PER_CORES = 4


@dataclass(frozen=True)
class Interpreter:
    """A worker process that has no run yet."""

    process: KeptProcess
    line: Line
    started: float  # on the machine's monotonic clock
    stopped: bool = False  # whether it was stopped when it was taken

    @property
    def output(self) -> IO[bytes]:
        """What it prints."""
        return cast("IO[bytes]", self.process.stdout)

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.line.close()

    def discard(self) -> None:
        """Kill it; it had no run, and nobody reads its output."""
        self.end()
        self.output.close()


def start(*, ahead: bool = False) -> Interpreter:
    """A worker process; `ahead`: it imports what most runs need while it waits."""
    ours, theirs = pair()
    started = monotonic()
    with theirs:
        process = KeptProcess(
            [*child_command("harness.runners.worker"), *([AHEAD] if ahead else [])],
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
        )
    return Interpreter(process, ours, started)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        # CUBLAS_WORKSPACE_CONFIG stays as it is: set to torch's own default for sm_90, `:4096:8`, it made torch 2.11
        # parse it at every GEMM, and an eager step of 28 layers took 54 ms instead of 36 on an H200
        "PYTHONHASHSEED": "0",
        # threads that spin while they wait make a shared machine several times slower
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "PYTHONPATH": child_path(),
        **moved_caches(),
    }


class Interpreters:
    """A few of them wait at a time, and never more than there are runs to come; a context manager."""

    def __init__(self, expected: int | None = None) -> None:
        # an import takes a processor for seconds, and keeps it from the runs under way
        self._ahead = max(1, usable_cores() // AHEAD_PER_CORES)
        self._expected = self._ahead if expected is None else expected
        self._waiting: list[Interpreter] = []
        self._lock = threading.Lock()
        self._stopped = self._closed = False

    def begin(self) -> None:
        """Start some now: before it is known what they are for."""
        self._fill()

    def expect(self, runs: int) -> None:
        """So many runs are to come."""
        with self._lock:
            self._expected = runs
            surplus = self._waiting[runs:]
            del self._waiting[runs:]
        for interpreter in surplus:
            interpreter.discard()

    def take(self) -> Interpreter:
        """One for a run: the one that has waited longest, or, where none waits, one that starts now."""
        with self._lock:
            self._expected -= 1
            taken = replace(self._waiting.pop(0), stopped=self._stopped) if self._waiting else None
        self._fill()
        return taken or start()

    def stop(self) -> None:
        """Stop those that wait or still import, and start none."""
        with self._lock:
            self._stopped = True
            for interpreter in self._waiting:
                interpreter.process.signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        with self._lock:
            if not self._stopped:
                return
            self._stopped = False
            for interpreter in self._waiting:
                interpreter.process.signal_group(signal.SIGCONT)
        self._fill()

    def close(self) -> None:
        """End those that nobody took."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for interpreter in waiting:
            interpreter.discard()

    def _fill(self) -> None:
        with self._lock:
            while not (self._stopped or self._closed) and len(self._waiting) < min(self._ahead, self._expected):
                self._waiting.append(start(ahead=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
