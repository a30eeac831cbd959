"""Execute a run in a worker process, check the worker's time and output, and record how the worker ended.

Only this process (the supervisor) checks time limits. A worker exceeds a limit if it runs longer than the run's wall
limit, or if its heartbeat stops although it does not compile (`is_compiling`). Such a worker gets SIGTERM, writes its
Python stack, and gets SIGKILL. All its descendants get SIGKILL too (`harness.processes`). Time in which a worker is
stopped for other runs does not count.

Worker processes without a run, called interpreters, are started in advance. Each of them imports torch while other runs
work, uses no device, and waits for a run. An interpreter is a new process and not a fork, because a fork would have its
parent's threads, CUDA context, memory addresses and, in /proc, environment.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

from harness.commits.checkout import Checkout
from harness.devices import environment
from harness.devices.environment import usable_cores
from harness.devices.telemetry import Sampler
from harness.evidence import layout
from harness.evidence.files import Damaged, empty_folder, kind, make_way, read_bytes
from harness.evidence.plan_records import Run
from harness.evidence.read_run import ProcessTimes, death_from_records, read_records
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import ArmFailed
from harness.execution.job import STACKS, THREADS, remove_checkpoint
from harness.execution.rank_seat import MARKS
from harness.execution.recorder import HEARTBEAT
from harness.execution.sharing import run_text, without_the_arm, write_run
from harness.execution.turns import Turns, gpu_locks
from harness.execution.watched_worker import OutputPump, Overrun, Progress, WatchedWorker, raise_if_set
from harness.execution.worker import AHEAD
from harness.kinds import probe_named
from harness.numbers import dump_json
from harness.platform.paths import moved_caches, without_folders
from harness.processes.child import Child, NoMessage, start_child

AHEAD_PER_CORES = 4
REPEATED = "1"  # Python's hash seed in processes that repeat an execution; in all other processes the hash seed is 0


def start(*, ahead: bool = False, repeats: bool = False) -> Child:
    """Start a worker process that has no run yet, and return it.

    ahead: True to import what most runs need while the process waits for a run. repeats: True for a process that
    executes only repetitions of arms. In such a process Python has another hash seed than in the processes of first
    executions.
    """
    # Do not set CUBLAS_WORKSPACE_CONFIG here, not even to torch's own default for sm_90, `:4096:8`. If it is set, torch
    # 2.11 parses it at every GEMM: an eager step of 28 layers took 54 ms instead of 36 ms on an H200.
    variables = {
        # Let waiting threads of OpenMP sleep. If they used the processor while they wait, runs on a shared machine
        # would be several times slower.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        **moved_caches(),
        **({"PYTHONHASHSEED": REPEATED} if repeats else {}),
    }
    return start_child("harness.execution.worker", *([AHEAD] if ahead else []), kept=True, variables=variables)


class Interpreters:
    """Worker processes that wait for a run. At most as many processes wait as runs are still expected. At the end of
    this context manager's `with` block, the processes that are still waiting are ended."""

    def __init__(self, expected: int | None = None) -> None:
        # Let only a few processes import in advance, because an import takes a processor from running workers for
        # seconds.
        self._ahead = max(1, usable_cores() // AHEAD_PER_CORES)
        self._expected = self._ahead if expected is None else expected
        self._waiting: list[Child] = []
        self._lock = threading.Lock()
        self._stopped = self._closed = False

    def begin(self) -> None:
        """Start some processes that wait for a run, before the number of runs is known."""
        self._fill()

    def expect(self, runs: int) -> None:
        """Set how many more runs will take a process, and end the waiting processes that no run will need."""
        with self._lock:
            self._expected = runs
            surplus = self._waiting[runs:]
            del self._waiting[runs:]
        for child in surplus:
            child.close()

    def take(self, *, repeats: bool = False) -> Child:
        """Return the process that has waited longest. Return a new one if none waits or `repeats` is true."""
        if repeats:
            return start(repeats=True)
        with self._lock:
            self._expected -= 1
            taken = self._waiting.pop(0) if self._waiting else None
        self._fill()
        return taken or start()

    def stop(self) -> None:
        """Stop (SIGSTOP) the processes that wait for a run, and start no new ones until `resume` is called."""
        with self._lock:
            self._stopped = True
            for child in self._waiting:
                child.stop()

    def resume(self) -> None:
        """Let the stopped processes continue, and start more processes up to the allowed number."""
        with self._lock:
            if not self._stopped:
                return
            self._stopped = False
            for child in self._waiting:
                child.resume()
        self._fill()

    def close(self) -> None:
        """End all processes that still wait for a run."""
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


SHOWN = 300  # largest number of characters shown of the last line that the worker printed
# signals that a user or a job scheduler may send to all processes of a job, to end the job
FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
# Seconds that this process waits after a signal of FROM_OUTSIDE ended the worker: this process may get it, too.
ENDED_TOGETHER_S = 1.0
OWN = (layout.RUN, layout.DEATH, layout.PROCESS, layout.TELEMETRY, layout.OUTPUT, HEARTBEAT, STACKS)


@dataclass
class Company:
    """The objects that all runs of one command share: waiting processes, a queue for runs that must be alone on the
    machine, and the ids of worker processes.

    locked: True if the command holds the GPU's lock for all its runs. Several runs may then use the GPU at the same
    time.
    """

    interpreters: Interpreters | None = None
    turns: Turns = field(default_factory=Turns)
    # process ids of the workers that use a GPU; each worker is the leader of a session of the operating system
    workers: set[int] = field(default_factory=set)
    # ids of the processes that used the GPU before this command started a worker; None: unknown
    before: set[int] | None = None
    locked: bool = False
    # number of host threads for each worker that is not timed; None: the default of the libraries
    threads: int | None = None
    checkout: Checkout | None = None  # checkout of the baseline's commit; None: all arms use the working tree

    def interpreter(self, *, repeats: bool) -> Child:
        """Return a process for a run. repeats: True if the run only repeats executions of arms."""
        taken = start if self.interpreters is None else self.interpreters.take
        return taken(repeats=repeats)


def execute(
    run: Run,
    directory: Path,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    gpu_uuid: str | None = None,
    rank_gpus: Sequence[str] = (),
    stop: threading.Event | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
    company: Company | None = None,
) -> Death | None:
    """Execute `run` in a worker process, and write its evidence into `directory`, whose old content is removed.

    Return None if the evidence is complete. Otherwise return how the worker died, and also write this to `death.json`.
    If a worker dies in one arm of a run that compares arms, and some judgement does not need that arm, another worker
    executes the run without the arm. If this thread gets an exception, such as KeyboardInterrupt, the worker is killed.

    gpu_uuid, rank_gpus: the GPUs to lock for the first rank and for the other ranks. Telemetry of the first GPU is
    sampled. A timing samples telemetry even without a GPU. stop: an event that the main thread sets to raise `Stopped`
    in this thread, because only the main thread receives signals. variables: environment variables that the worker sets
    before it reads the run. company: the objects that the runs of a command share; None for a single run.
    """
    empty_folder(directory)  # user code in another run may have written files into this folder
    write_run(run, directory)
    tell = on_progress or (lambda _progress: None)
    company = company or Company()
    lock: AbstractContextManager[None] = nullcontext()
    # time of the request for the GPU; None: no request is needed, because the command already holds the GPU's lock
    asked = None
    if gpu_uuid and not company.locked:
        asked = time.monotonic()
        lock = gpu_locks([gpu_uuid, *rank_gpus], lambda waiting: tell(Progress(run.id, waiting, 0.0)))
    with lock:
        death = _supervise(run, directory, tell, gpu_uuid, stop, variables, company, asked)
        failed: dict[str, ArmFailed] = {}
        # If a worker or its device died, only the arm that was being executed is lost. Another worker executes the
        # other arms again.
        while death is not None and (rest := without_the_arm(run, directory, death, failed)) is not None:
            run = rest
            death = _supervise(run, directory, tell, gpu_uuid, stop, variables, company)
    if death is not None:
        write_death(death, directory)
    for folder in (directory, *directory.glob(f"{layout.RANK}*")):
        for path in (folder / HEARTBEAT, folder / STACKS, *folder.glob(f"{MARKS}.*"), *folder.glob(f"{THREADS}.*")):
            path.unlink(missing_ok=True)
    return death


def _outlive(death: Death, stop: threading.Event | None) -> None:
    """Wait a moment if the worker was ended by a signal that the harness did not send, because the same signal may soon
    reach this process.

    If the signal reaches this process during the wait, or if `stop` is set, raise an exception, so that the worker's
    death is not recorded. A recorded death counts as the run's result. A run without a recorded death is executed again
    later.
    """
    if death.cause == "signal" and any(name in death.detail for name in FROM_OUTSIDE):
        (stop or threading.Event()).wait(ENDED_TOGETHER_S)
        raise_if_set(stop)


def _supervise(
    run: Run,
    directory: Path,
    tell: Callable[[Progress], None],
    gpu_uuid: str | None,
    stop: threading.Event | None,
    variables: Mapping[str, str],
    company: Company,
    asked: float | None = None,
) -> Death | None:
    timed = probe_named(run.probe).timed
    watched = gpu_uuid is not None or timed
    worker = WatchedWorker(run, directory, company.interpreter(repeats=run.repeats), tell)
    pid, commit = worker.child.pid, environment.checked_out_commit()
    trained: list[str] = []
    if gpu_uuid is not None:
        company.workers.add(pid)
    try:
        with company.turns.present(worker, lambda: raise_if_set(stop)):
            sampling = Sampler(gpu_uuid, company.workers, worker.phase, company.before) if watched else nullcontext()
            with sampling as sampler:
                trained = company.checkout.trained(run.commits) if company.checkout is not None else []
                threads = None if timed else company.threads
                worker.begin(variables, threads, company.checkout)
                overrun = worker.watch(stop, company.turns)
    finally:
        worker.end()
        company.workers.discard(pid)
        taken = put_back(run, directory, worker.phase())
        remove_checkpoint(directory)
        times = ProcessTimes(
            started=worker.started,
            given_run=worker.given,
            ready=worker.ready,
            ended=time.monotonic(),
            asked_for_gpu=asked,
            commit=commit,
            trained=trained,
            gpu=gpu_uuid,
            gpu_alone=None if gpu_uuid is None else not company.locked,
            stopped=worker.stopped,
        )
        write_process_times(directory, times)
    _rewrite_output(directory / layout.OUTPUT)
    if sampler is not None:
        sampler.write(directory / layout.TELEMETRY)
    tell(Progress(run.id, "", worker.elapsed()))
    death = taken or _death(run, directory, worker, overrun)
    if death is not None:
        _outlive(death, stop)
    return death


def _rewrite_output(output: Path) -> None:
    """Remove the names of folders from the file with the worker's printed output. Do nothing if the file is damaged or
    too large."""
    with suppress(Damaged):
        text = read_bytes(output, limit=2 * OutputPump.KEPT).decode("utf-8", "replace")
        output.write_text(without_folders(text), encoding="utf-8")


def _death(run: Run, directory: Path, worker: WatchedWorker, overrun: Overrun | None) -> Death | None:
    ending, phase = worker.child.ended(), worker.phase() or None
    limits = {
        "wall_limit": f"still running after {run.wall_limit_s:g} s",
        "heartbeat": f"no progress for {run.heartbeat_s:g} s",
        "output_limit": f"printed more than {OutputPump.LIMIT // 2**20} MiB",
        "garbage": f"it wrote {NoMessage()}",
    }
    if overrun is not None:
        return Death(cause=overrun, detail=limits[overrun], phase=phase, stack=worker.stacks.read())
    if ending.cause == "signal":
        return Death(cause="signal", detail=ending.name, phase=phase, stack=worker.stacks.read())
    records, damage = read_records(directory)
    death = death_from_records(records, damage, phase)
    if ending.code != 0 and (death is None or death.cause in ("incomplete", "garbage")):
        detail = f"{ending.name}{_last_words(directory / layout.OUTPUT)}"
        return Death(cause="exit_code", detail=detail, phase=phase, stack=worker.stacks.read())
    if death is None and (edited := worker.edited()) is not None:
        return Death(cause="garbage", detail=edited, phase=phase, stack="")
    return death


def _last_words(output: Path) -> str:
    """Return a clause with the last line that the worker printed. The clause begins with a comma and follows a
    sentence. Return "" if the worker printed nothing, or more than the file contains."""
    try:
        lines = read_bytes(output, limit=OutputPump.KEPT - 1).decode("utf-8", "replace").split("\n")
    except Damaged:  # the worker printed nothing, or more than the file contains
        return ""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f", and its last output was {last[:SHOWN]!r}" if last else ""


def write_process_times(directory: Path, times: ProcessTimes) -> None:
    """Write the times of a worker's process as `process.json` into the run's directory. Call this function when the
    worker has ended."""
    (directory / layout.PROCESS).write_text(dump_json(times.model_dump()) + "\n", encoding="utf-8")


# A worker can change or replace its run's directory. The code below limits the damage to this run, whose evidence is
# then invalid.


def put_back(run: Run, directory: Path, phase: str) -> Death | None:
    """Restore `directory` and its `run.json` after the worker's end. Return a `Death` if either was changed, else None.

    phase: the worker's last phase. A link, pipe or folder at the path of one of the harness's own files is removed.
    """
    found = kind(directory)
    if found != "a folder":
        empty_folder(directory)
    elif directory.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
        directory.chmod(0o755)
    for name in OWN:
        make_way(directory / name)
    planned = directory / layout.RUN
    there = planned.exists()
    if there and planned.read_text(encoding="utf-8", errors="replace") == run_text(run):
        return None
    write_run(run, directory)
    detail = f"the directory of the run was {found} when its worker ended"
    if found == "a folder":
        has = "another" if there else "no"
        detail = f"the directory of the run had {has} {layout.RUN} when its worker ended"
    return Death(cause="incomplete", detail=detail, phase=phase or None, stack="")


def write_death(death: Death, directory: Path) -> None:
    """Write `death.json` into the run's directory. The file says how the worker died."""
    (directory / layout.DEATH).write_text(dump_json(death.model_dump(), indent=2) + "\n", encoding="utf-8")
