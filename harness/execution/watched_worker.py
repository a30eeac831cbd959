"""Watch a worker with a run for its supervisor: its limits, its phase, its turn, the seconds it was stopped."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from harness.commits.checkout import Checkout
from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.evidence.written import Written
from harness.execution.compiling import is_compiling
from harness.execution.job import name_of
from harness.execution.output import OutputPump
from harness.execution.recorder import HEARTBEAT
from harness.execution.stacks import LeftStacks
from harness.execution.turns import Turns
from harness.execution.worker import WorkerJob
from harness.processes.child import Child, Ending
from harness.processes.line import ALONE, GO, READY, TOGETHER, WRITTEN

POLL_S = 0.1
TERMINATION_GRACE_S = 5.0
Overrun = Literal["wall_limit", "heartbeat", "output_limit", "garbage"]


class Stopped(Exception):  # noqa: N818 - it is not an error: somebody asked for it
    """The run was ended because `stop` was set."""


class Ended(Exception):  # noqa: N818 - the process that waits for it looks at its end
    """The worker ended while it waited for its turn."""


@dataclass(frozen=True)
class Progress:
    """Where a run is: reported at every change of phase, while it waits for its GPU, and at its end (phase "")."""

    run_id: str
    phase: str
    seconds: float


class WatchedWorker:
    """One worker. `stop` and `resume` come from other threads than the one that watches it."""

    def __init__(self, run: Run, directory: Path, child: Child, tell: Callable[[Progress], None]) -> None:
        self._run, self._directory, self._tell = run, directory, tell
        self.child, self.started = child, child.started
        self.stacks = LeftStacks(directory)
        self.given: float | None = None  # when it was given its run
        self.ready: float | None = None  # when it had imported what it does ahead, if it reported that before
        self.stopped: list[tuple[float, float]] = []  # intervals on the monotonic clock
        self._stopped_at = time.monotonic() if child.stopped else None
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._beat = 0
        self._beat_at = self._began
        self._phase = ""
        self._heartbeat: IO[bytes] | None = None
        self._garbled = False
        self._written: Written | None = None
        child.pumped = True
        self._pump = OutputPump(child.output, directory / layout.OUTPUT)

    def begin(self, variables: Mapping[str, str], threads: int | None, checkout: Checkout | None = None) -> None:
        """Give the worker its run; see `WorkerJob`. checkout: of the commit of the run's baselines."""
        told = self._said(0.0)
        if told.startswith(READY):
            self.ready = float(told.removeprefix(READY))
        self.given = self._began = self._beat_at = time.monotonic()
        # opened before its code runs: whatever becomes of the directory, this file says where it was
        self._heartbeat = (self._directory / HEARTBEAT).open("w+b")
        self._beat = self._last_beat()
        job = WorkerJob(
            folder=name_of(self._directory),
            variables=dict(variables),
            baseline=checkout.import_path if checkout is not None else None,
            exchange=str(checkout.exchange / self._run.id) if checkout is not None else None,
            threads=threads,
        )
        self.child.send(job)

    def end(self) -> None:
        """Kill what is left of the worker, and read its last phase."""
        self.child.close()
        self._pump.join()
        if self._heartbeat is not None:
            self._phase = self._last_phase() or self._phase
            self._heartbeat.close()

    def elapsed(self) -> float:
        """Return the seconds since the worker was given its run."""
        return time.monotonic() - self._began

    def phase(self) -> str:
        """Return the last phase that the worker was seen to enter; after `end` the last one that it entered."""
        return self._phase

    def stop(self) -> None:
        """Stop the worker's processes, if they are not stopped."""
        with self._lock:
            if self._stopped_at is None:
                self.child.stop()
                self._stopped_at = time.monotonic()

    def resume(self) -> None:
        """Let the worker's processes continue, if they are stopped."""
        with self._lock:
            if self._stopped_at is not None:
                self.stopped.append((self._stopped_at, time.monotonic()))
                self._beat_at = time.monotonic()
                self._stopped_at = None
                self.child.resume()

    def _check(self, stop: threading.Event | None) -> None:
        """Raise `Stopped` when asked to stop, and `Ended` when the worker has ended."""
        raise_if_set(stop)
        if self.child.poll() is not None:
            raise Ended

    def watch(self, stop: threading.Event | None, turns: Turns) -> Overrun | None:
        """Wait for the worker's end. At a limit kill it, and return which. Raises `Stopped` when asked to stop."""
        try:
            while True:
                self._check(stop)
                self._listen(stop, turns)
                overrun = self._overrun()
                if overrun is not None:
                    self.child.terminate(TERMINATION_GRACE_S)
                    self.child.close()
                    return overrun
        except Ended:
            while self._said(0.0):
                pass  # its last words
            return "output_limit" if self._pump.exceeded else None

    def _listen(self, stop: threading.Event | None, turns: Turns) -> None:
        """Wait a moment for a request of the worker, and grant it."""
        asked = self._said(POLL_S)
        if asked == ALONE:
            turns.alone(self, lambda: self._check(stop))
            self.child.line.send(GO)
        elif asked == TOGETHER:
            turns.together(self)
            self.child.line.send(GO)

    def _said(self, seconds: float) -> str:
        """Return what the worker says within `seconds`. Note it if that is not a message."""
        said = self.child.receive(str, seconds)
        if isinstance(said, Ending):
            self._garbled = self._garbled or said.code is None
        if isinstance(said, str) and said.startswith(WRITTEN):
            try:
                self._written = Written.model_validate_json(said.removeprefix(WRITTEN))
            except ValueError:
                self._garbled = True
        return said if isinstance(said, str) else ""

    def edited(self) -> str | None:
        """Return what is wrong if the evidence of a complete run is not what its worker wrote; None if it is."""
        if self._written is None:
            return "the worker reported no digest of what it wrote"
        name = self._written.changed(self._directory)
        return None if name is None else f"{name}: changed after it was written"

    def _overrun(self) -> Overrun | None:
        self._observe()
        if self._garbled:
            return "garbage"
        if self._pump.exceeded:
            return "output_limit"
        with self._lock:
            if self._stopped_at is not None:
                return None
        if self.elapsed() - sum(until - since for since, until in self.stopped) > self._run.wall_limit_s:
            return "wall_limit"
        return "heartbeat" if self._is_hung() else None

    def _is_hung(self) -> bool:
        """Return True if the heartbeat is too old, and the worker is neither stopped nor compiling."""
        if time.monotonic() - self._beat_at <= self._run.heartbeat_s:
            return False
        if is_compiling(self.child.pid, self._directory):
            self._beat_at = time.monotonic()  # it is looked at again after as long
        self._observe()
        with self._lock:
            return self._stopped_at is None and time.monotonic() - self._beat_at > self._run.heartbeat_s

    def _observe(self) -> None:
        """Note a changed heartbeat or phase. Changes are compared, not dates: the clock may be set."""
        beat = self._last_beat()
        if beat != self._beat:
            self._beat, self._beat_at = beat, time.monotonic()
            phase = self._last_phase()
            if phase and phase != self._phase:
                self._phase = phase
                self._tell(Progress(self._run.id, phase, self.elapsed()))

    def _last_beat(self) -> int:
        return 0 if self._heartbeat is None else os.fstat(self._heartbeat.fileno()).st_mtime_ns

    def _last_phase(self) -> str:
        text = b"" if self._heartbeat is None else os.pread(self._heartbeat.fileno(), 4096, 0)
        return text.partition(b"\n")[0].decode("utf-8", "replace")


def raise_if_set(stop: threading.Event | None) -> None:
    """Raise `Stopped` when asked to stop."""
    if stop is not None and stop.is_set():
        raise Stopped
