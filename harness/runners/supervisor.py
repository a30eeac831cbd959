"""Execute a Run in a process of its own, watch its time and output, and name the way it ended.

The supervisor alone watches time. A worker that overruns its wall limit or stops its heartbeat gets SIGTERM (it
leaves its Python stack), then SIGKILL, and so does every process that came of it (`harness.processes`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO, Literal, cast

from harness.errors import ExitCode
from harness.evidence import layout
from harness.evidence.files import Damaged, read_bytes
from harness.evidence.plan_records import Run
from harness.evidence.read_run import death_from_records, read_records
from harness.evidence.run_evidence import Death
from harness.numbers import dump_json
from harness.processes.kept import KeptProcess
from harness.python_path import child_command, child_path
from harness.runners.folders import without_folders
from harness.runners.gpu_lock import gpu_lock
from harness.runners.output import OutputPump
from harness.runners.recorder import HEARTBEAT
from harness.runners.remaining import without_the_arm, write_run
from harness.runners.telemetry import Sampler
from harness.runners.worker import STACKS

POLL_S = 0.1
TERMINATION_GRACE_S = 5.0
STACK_EXCERPT = 8000  # characters
Overrun = Literal["wall_limit", "heartbeat", "output_limit"]


class Stopped(Exception):  # noqa: N818 - it is not an error: somebody asked for it
    """The run was ended because `stop` was set."""


@dataclass(frozen=True)
class Progress:
    """Where a run is: told at every change of phase, while it waits for its GPU, and at its end (phase "")."""

    run_id: str
    phase: str
    seconds: float


def execute(
    run: Run,
    directory: Path,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    gpu_uuid: str | None = None,
    stop: threading.Event | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Death | None:
    """Run `run` in a fresh worker process; its evidence goes into `directory`, which must not exist yet.

    Returns None when the evidence is complete, else how the worker died (also written to `death.json`). A worker that
    died in one arm of a paired run is followed by another without that arm, as long as a judgement needs the rest. With
    `gpu_uuid` that GPU is locked, and its telemetry sampled; a timing's is sampled on any machine. SIGINT and
    SIGTERM kill the worker first, and are then raised as KeyboardInterrupt and SystemExit(143). They reach the main
    thread alone: what it runs in other threads it ends by setting `stop`, which raises `Stopped` there. `variables`
    stand in the worker's environment beside those of this process.
    """
    directory.mkdir(parents=True)
    write_run(run, directory)
    tell = on_progress or (lambda _progress: None)
    lock = gpu_lock(gpu_uuid, lambda waiting: tell(Progress(run.id, waiting, 0.0))) if gpu_uuid else nullcontext()
    with sigterm_raises(), lock:
        death = _supervise(run, directory, tell, gpu_uuid, stop, variables)
        # a process that died, or whose device did, decides nothing more: what its arm did not cost is run again
        while death is not None and (rest := without_the_arm(run, directory, death)) is not None:
            run = rest
            death = _supervise(run, directory, tell, gpu_uuid, stop, variables)
    if death is not None:
        (directory / layout.DEATH).write_text(dump_json(death.model_dump(), indent=2) + "\n", encoding="utf-8")
    for name in (HEARTBEAT, STACKS):
        (directory / name).unlink(missing_ok=True)
    return death


def _supervise(
    run: Run,
    directory: Path,
    tell: Callable[[Progress], None],
    gpu_uuid: str | None,
    stop: threading.Event | None,
    variables: Mapping[str, str],
) -> Death | None:
    watched = gpu_uuid is not None or run.probe == "throughput"
    with (directory / layout.RUN).open("rb") as stdin:
        process = _start(directory, stdin.fileno(), variables)
    worker = _Worker(run, directory, process, tell)
    try:
        with Sampler(gpu_uuid, process.pid, worker.phase) if watched else nullcontext() as sampler:
            overrun = worker.watch(stop)
    finally:
        process.kill()
        worker.pump.join()
    output = directory / layout.OUTPUT
    if output.exists():
        output.write_text(without_folders(output.read_text(encoding="utf-8", errors="replace")), encoding="utf-8")
    if sampler is not None:
        sampler.write(directory / layout.TELEMETRY)
    tell(Progress(run.id, "", worker.elapsed()))
    return _death(run, directory, process.wait(), overrun)


def _start(directory: Path, stdin: int, variables: Mapping[str, str]) -> KeptProcess:
    environment = {
        **os.environ,
        **variables,
        # CUBLAS_WORKSPACE_CONFIG stays as it is: set to torch's own default for sm_90, `:4096:8`, it made torch 2.11
        # parse it at every GEMM, and an eager step of 28 layers took 54 ms instead of 36 on an H200
        "PYTHONHASHSEED": "0",
        # threads that spin while they wait make a shared machine several times slower
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "PYTHONPATH": child_path(),
    }
    return KeptProcess(
        [*child_command("harness.runners.worker"), str(directory.resolve())],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )


class _Worker:
    """One started worker, as its supervisor watches it."""

    def __init__(
        self,
        run: Run,
        directory: Path,
        process: KeptProcess,
        tell: Callable[[Progress], None],
    ) -> None:
        self._run, self._directory, self._process, self._tell = run, directory, process, tell
        self._started = time.monotonic()
        self._beat: tuple[int, ...] = ()
        self._beat_at = self._started
        self._phase = ""
        self.pump = OutputPump(cast("IO[bytes]", process.stdout), directory / layout.OUTPUT)

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def phase(self) -> str:
        """The last phase that the worker entered."""
        return self._phase

    def watch(self, stop: threading.Event | None) -> Overrun | None:
        """Wait for the end; kill the worker at a limit, and say at which. Raises `Stopped` when asked to stop."""
        while True:
            if stop is not None and stop.is_set():
                raise Stopped
            try:
                self._process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                overrun = self._overrun()
                if overrun is not None:
                    self._terminate()
                    return overrun
            else:
                return "output_limit" if self.pump.exceeded else None

    def _overrun(self) -> Overrun | None:
        self._observe()
        if self.pump.exceeded:
            return "output_limit"
        if self.elapsed() > self._run.wall_limit_s:
            return "wall_limit"
        if time.monotonic() - self._beat_at > self._run.heartbeat_s:
            return "heartbeat"
        return None

    def _observe(self) -> None:
        """Note a changed heartbeat or phase. Changes are compared, not dates: the clock may be set."""
        beat = self._heartbeat()
        if beat != self._beat:
            self._beat, self._beat_at = beat, time.monotonic()
            phase = last_phase(self._directory)
            if phase and phase != self._phase:
                self._phase = phase
                self._tell(Progress(self._run.id, phase, self.elapsed()))

    def _heartbeat(self) -> tuple[int, ...]:
        try:
            return ((self._directory / HEARTBEAT).stat().st_mtime_ns,)
        except FileNotFoundError:
            return ()

    def _terminate(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(TERMINATION_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def last_phase(directory: Path) -> str | None:
    """The phase in which the worker is, or was when it died."""
    try:
        return read_bytes(directory / HEARTBEAT, limit=4096).decode("utf-8", "replace") or None
    except Damaged:
        return None


def _death(run: Run, directory: Path, code: int, overrun: Overrun | None) -> Death | None:
    phase = last_phase(directory)
    limits = {
        "wall_limit": f"still running after {run.wall_limit_s:g} s",
        "heartbeat": f"no progress for {run.heartbeat_s:g} s",
        "output_limit": f"printed more than {OutputPump.LIMIT // 2**20} MiB",
    }
    if overrun is not None:
        return Death(cause=overrun, detail=limits[overrun], phase=phase, stack=_stack(directory))
    if code < 0:
        return Death(cause="signal", detail=_signal_name(-code), phase=phase, stack=_stack(directory))
    records, damage = read_records(directory)
    death = death_from_records(records, damage, phase)
    if code > 0 and (death is None or death.cause != "exception"):
        return Death(cause="exit_code", detail=f"exit status {code}", phase=phase, stack=_stack(directory))
    return death


def _stack(directory: Path) -> str:
    """What faulthandler left: the stacks at a crash or at SIGTERM, most recent call first."""
    try:
        stack = read_bytes(directory / STACKS, limit=2**20).decode("utf-8", "replace")
        return without_folders(stack)[:STACK_EXCERPT]
    except Damaged:
        return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit, so that the worker is killed before this process ends."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it receives signals
        return

    def raise_exit(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(ExitCode.TERMINATED)

    previous = signal.signal(signal.SIGTERM, raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
