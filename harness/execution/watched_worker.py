"""Observe one worker process: its time limits, its phase and its output. This module also grants the worker's requests
to be alone on the machine, and records in which time intervals the worker was stopped."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from harness.commits.checkout import Checkout
from harness.evidence import layout
from harness.evidence.files import Damaged, Written, read_bytes
from harness.evidence.plan_records import Run
from harness.execution.job import SHOW, THREADS, LeftStacks, name_of
from harness.execution.recorder import HEARTBEAT
from harness.execution.turns import Turns
from harness.execution.worker import WorkerJob
from harness.processes.child import ALONE, GO, READY, TOGETHER, WRITTEN, Child, Ending
from harness.processes.kept import KEEPER


class OutputPump:
    """A thread that reads a pipe to its end, counts the bytes, and writes the first `KEPT` bytes to a file."""

    KEPT = 256 * 2**10
    LIMIT = 10 * 2**20
    _JOIN_S = 5.0

    def __init__(self, pipe: IO[bytes], path: Path) -> None:
        self._pipe, self._path = pipe, path
        self._total = 0
        self._file: IO[bytes] | None = None
        self._lost = False
        self._thread = threading.Thread(target=self._drain, name="worker output", daemon=True)
        self._thread.start()

    @property
    def exceeded(self) -> bool:
        """Return True if more than `LIMIT` bytes were printed."""
        return self._total > self.LIMIT

    def join(self) -> None:
        """Wait for the end of the pipe, at most five seconds. The pipe ends when every process that can write to it has
        ended."""
        self._thread.join(self._JOIN_S)

    def _drain(self) -> None:
        with self._pipe:
            while chunk := self._pipe.read1(2**16):  # type: ignore[attr-defined]
                part = chunk[: max(0, self.KEPT - self._total)]
                self._total += len(chunk)
                if part and not self._lost:
                    self._keep(part)
        if self._file is not None:
            with suppress(OSError):  # on a full disk, closing the file fails, because it writes the buffered data
                self._file.close()

    def _keep(self, part: bytes) -> None:
        try:
            self._file = self._file or self._path.open("xb")
            self._file.write(part)
            self._file.flush()
        # the disk is full, the worker has removed the directory, or it has put something else at this path
        except OSError:
            self._lost = True  # from now on the output is counted but not written


# The following functions find out whether a process without progress is compiling. A process that compiles does not
# count as hung, however long the compilation takes. Processor time alone proves nothing, because a deadlock in NCCL
# also uses the processor. A process compiles if one of its descendants is a compiler that uses the processor. It also
# compiles if the stack of one of its threads contains a frame of the compilers of dynamo, inductor or Triton.

PROCESSES = Path("/proc")
# seconds in which a compiler must use the processor at least once; they are 50 ticks of the kernel's clock
USES_S = 0.5
SHOWS_S = 2.0  # seconds in which a process must write its stacks; they are enough even on a busy machine
STACK_LIMIT = 2**22  # largest number of bytes that are read from a file of stacks
_COMPILER = re.compile(
    r"ptxas|nvcc|cicc|cudafe\+\+|nvlink|fatbinary|cc1(plus)?|lto1|collect2|"
    r"([\w.-]+-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|ld|lld|as)(-[\d.]+)?|ld\.\w+"
)
_POOL = b"_inductor/compile_worker"  # part of the command line of every process in which inductor compiles
_FRAME = re.compile(r'^ *File "(?P<file>.*)", line \S+ in (?P<function>.*)$', re.MULTILINE)
_COMPILES = re.compile(
    r"(^|/)(torch/_(dynamo|inductor)/|triton/(compiler/|backends/\w+/compiler\.py|runtime/build\.py))"
)
# Frames of these modules and functions do not show that their process compiles: they run compiled code, or wait for
# another process that compiles.
_RUNS = re.compile(
    r"torch/(_dynamo/(eval_frame|external_utils|compiled_autograd)"
    r"|_inductor/(output_code|utils|cudagraph_\w+|runtime/(triton_heuristics|static_\w+)|compile_worker/\w+))\.py:"
    r"|_inductor/compile_fx\.py:run$"
)


def is_compiling(process: int, directory: Path) -> bool:
    """Return True if a process or one of its descendants is compiling now. directory: the folder in which, and below
    which, these processes write their stacks."""
    below = _below(process)
    before = _compilers(below)
    if any(shows_compiler(stack) for stack in _stacks(below, directory)):
        return True
    time.sleep(USES_S)
    now = _compilers(_below(process))
    return any(ticks > before.get(number, -1) for number, ticks in now.items())


def shows_compiler(stacks: str) -> bool:
    """Return True if a stack in `stacks`, a text that faulthandler wrote, has a frame of a compiler like Triton's."""
    frames = (f"{frame['file']}:{frame['function']}" for frame in _FRAME.finditer(stacks))
    return any(_COMPILES.search(frame) and not _RUNS.search(frame) for frame in frames)


def _stacks(processes: set[int], directory: Path) -> Iterator[str]:
    """Yield, for each of the `processes` that can write its stacks on request, the stacks of its threads as text."""
    for path in directory.glob(f"**/{THREADS}.*"):
        number = path.suffix[1:]
        if SHOW is not None and number.isdecimal() and int(number) in processes:
            with suppress(OSError, Damaged):
                yield _shown(int(number), path, SHOW)


def _shown(process: int, path: Path, number: int) -> str:
    known = size = len(read_bytes(path, STACK_LIMIT))
    os.kill(process, number)
    until = time.monotonic() + SHOWS_S
    while time.monotonic() < until:
        time.sleep(0.05)
        before, size = size, path.lstat().st_size
        if known < before == size:  # the file has grown and has stopped growing, so it contains all stacks
            break
    return read_bytes(path, STACK_LIMIT)[known:].decode("utf-8", "replace")


def _below(process: int) -> set[int]:
    """Return the ids of a process and its descendants. If the parent of the process is a keeper (a process that ends
    child processes of the harness), include the keeper and all its descendants."""
    seen = {int(entry.name): _status(int(entry.name)) for entry in _entries()}
    parents = {number: status[0] for number, status in seen.items() if status is not None}
    keeper = parents.get(process, process)
    found = {process, keeper} if os.fsencode(KEEPER) in _command(keeper) else {process}
    grows = True
    while grows:
        more = {number for number, parent in parents.items() if parent in found} - found
        found, grows = found | more, bool(more)
    return found


def _compilers(processes: set[int]) -> dict[int, int]:
    """Return the processor time that each compiler among the `processes` has used so far, by process id, in ticks of
    the kernel's clock. Other processes are left out."""
    found = {}
    for process in processes:
        seen = _status(process)
        if seen is not None and (_COMPILER.fullmatch(seen[1]) or _is_called_compiler(process)):
            found[process] = seen[2]
    return found


def _is_called_compiler(process: int) -> bool:
    command = _command(process)
    # if a shell runs a script, the script's name is the second word
    names = (Path(os.fsdecode(word)).name for word in command[:2])
    return any(_POOL in word for word in command) or any(map(_COMPILER.fullmatch, names))


def _command(process: int) -> list[bytes]:
    try:
        return (PROCESSES / str(process) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _status(process: int) -> tuple[int, str, int] | None:
    """Return the parent, the name and the processor time (in ticks of the kernel's clock) of a process. Return None if
    the process has ended, or if there is no /proc."""
    try:
        text = (PROCESSES / str(process) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # search for the last closing parenthesis, because a process name may contain parentheses
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return int(fields[1]), name, int(fields[11]) + int(fields[12])


def _entries() -> Iterator[Path]:
    if PROCESSES.is_dir():
        yield from (entry for entry in PROCESSES.iterdir() if entry.name.isdecimal())


POLL_S = 0.1
TERMINATION_GRACE_S = 5.0
Overrun = Literal["wall_limit", "heartbeat", "output_limit", "garbage"]


class Stopped(Exception):  # noqa: N818 - it is not an error but a request
    """The event `stop` was set, so the run must end. This is a request and not an error."""


class Ended(Exception):  # noqa: N818 - the caller examines how the worker ended
    """The worker has ended, perhaps while it waited to be alone on the machine."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run. It is reported at each new phase, when the run must wait for its GPU, and at the run's
    end, where the phase is ""."""

    run_id: str
    phase: str
    seconds: float


class WatchedWorker:
    """One worker process, and what was observed of it. Other threads may call `stop` and `resume`."""

    def __init__(self, run: Run, directory: Path, child: Child, tell: Callable[[Progress], None]) -> None:
        self._run, self._directory, self._tell = run, directory, tell
        self.child, self.started = child, child.started
        self.stacks = LeftStacks(directory)
        self.given: float | None = None  # time at which the worker got its run
        # time at which the worker's imports were complete; None if it did not import before it got its run
        self.ready: float | None = None
        # intervals in which the worker was stopped, on the monotonic clock
        self.stopped: list[tuple[float, float]] = []
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
        """Send the worker its run, as a `WorkerJob`. checkout: the source files of the baseline's commit; None if all
        arms use the working tree."""
        told = self._said(0.0)
        if told.startswith(READY):
            self.ready = float(told.removeprefix(READY))
        self.given = self._began = self._beat_at = time.monotonic()
        # Open this file before user code runs. The phase can then be read even if user code removes the directory.
        self._heartbeat = (self._directory / HEARTBEAT).open("w+b")
        self._beat = self._last_beat()
        job = WorkerJob(
            folder=name_of(self._directory),
            variables=dict(variables),
            baseline=checkout.import_path_of(self._run.commits) if checkout is not None else None,
            exchange=str(checkout.exchange / self._run.id) if checkout is not None else None,
            threads=threads,
        )
        self.child.send(job)

    def end(self) -> None:
        """Kill the worker and all processes that it started, and read its last phase."""
        self.child.close()
        self._pump.join()
        if self._heartbeat is not None:
            self._phase = self._last_phase() or self._phase
            self._heartbeat.close()

    def elapsed(self) -> float:
        """Return the seconds since the worker was given its run."""
        return time.monotonic() - self._began

    def phase(self) -> str:
        """Return the last phase that was observed. After `end`, return the last phase that the worker recorded."""
        return self._phase

    def stop(self) -> None:
        """Stop the worker's processes, unless they are stopped already."""
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
        """Raise `Stopped` if `stop` is set, and `Ended` if the worker has ended."""
        raise_if_set(stop)
        if self.child.poll() is not None:
            raise Ended

    def watch(self, stop: threading.Event | None, turns: Turns) -> Overrun | None:
        """Wait until the worker ends, and return None. If the worker exceeds a limit, kill it and return the name of
        the limit. Raises `Stopped` if `stop` is set."""
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
                pass  # read the last messages of the worker
            return "output_limit" if self._pump.exceeded else None

    def _listen(self, stop: threading.Event | None, turns: Turns) -> None:
        """Wait a moment for a request of the worker, and grant it: to run alone, or to run with others again."""
        asked = self._said(POLL_S)
        if asked == ALONE:
            turns.alone(self, lambda: self._check(stop))
            self.child.line.send(GO)
        elif asked == TOGETHER:
            turns.together(self)
            self.child.line.send(GO)

    def _said(self, seconds: float) -> str:
        """Return the worker's message if one arrives within `seconds`, otherwise "". If the worker sends invalid data,
        store this fact."""
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
        """Return None if the files of a complete run are as its worker wrote them. Otherwise return a message about the
        difference."""
        if self._written is None:
            return "the worker reported no digests of the files that it wrote"
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
        """Return True if the last heartbeat is too old, and the worker is neither stopped nor compiling."""
        if time.monotonic() - self._beat_at <= self._run.heartbeat_s:
            return False
        if is_compiling(self.child.pid, self._directory):
            self._beat_at = time.monotonic()  # measure the next `heartbeat_s` seconds of silence from now on
        self._observe()
        with self._lock:
            return self._stopped_at is None and time.monotonic() - self._beat_at > self._run.heartbeat_s

    def _observe(self) -> None:
        """Record when the heartbeat or the phase changes. The recorded time comes from this process's monotonic clock.
        The file's own time comes from the system clock, which a user may change."""
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
    """Raise `Stopped` if `stop` is set."""
    if stop is not None and stop.is_set():
        raise Stopped
