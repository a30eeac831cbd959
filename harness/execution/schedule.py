"""Choose which runs of a command execute at the same time, and in which order.

Runs that are not timed come first. Runs on a GPU share the GPU as far as its memory allows. Runs without a GPU execute
at the same time as runs on a GPU. Timings come last. Several timings open their arms at the same time, but only one
process at a time measures (see `turns.py`).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from harness.commits.checkout import Checkout
from harness.devices.environment import Machine, usable_cores
from harness.devices.telemetry import processes_on
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import Death
from harness.execution import supervisor
from harness.execution.sharing import awaits
from harness.execution.supervisor import Company, Interpreters
from harness.execution.turns import ALONE, GpuTurn
from harness.execution.watched_worker import Progress
from harness.kinds import probe_named
from harness.planning.obstacles import gpu_memory_gib, gpus_of, needs_gpu, ran_out_of_memory, shares_gpu

GPU_SHARE = 0.9  # share of a GPU's memory that may be given to runs
# share of a GPU's memory that this command reserves if one of its runs does not declare how much memory it needs
UNDECLARED_SHARE = 0.25
# GiB of GPU memory that a process needs outside of torch; 0.76 GiB was measured on an H200 with one captured step
CONTEXT_GIB = 0.8
HOST_GIB = 2.0  # GiB of host memory that each process needs, including torch's libraries
# Estimated factor by which an arm takes longer if its host syncs are observed: while such an arm waits for the GPU, the
# GPU may work for other runs. On an H200 with seven other runs, a step of such an arm took 360 to 470 ms, and a step of
# an eager arm 85 ms.
WATCHED = 4
# Estimated time to open an arm, in steps of the arm. Without this estimate, short runs of large models would seem to be
# the shortest tasks, and would begin last.
OPENING = 50
POLL_S = 0.5
NOT_TIMED, EXCLUSIVE, TIMED = range(3)


@dataclass(frozen=True)
class Work:
    """A run to execute, the directory for its evidence, and two callbacks.

    tell: called with the progress of the run. over: called when the run ends. Its argument describes the death of the
    worker, or is None if the worker did not die. `over` is not called for an interrupted run.
    """

    run: Run
    directory: Path
    tell: Callable[[Progress], None]
    over: Callable[[Death | None], None]


@dataclass(frozen=True)
class Task(Work):
    """A run that waits for a worker process. memory_gib: the GPU memory that the run may take; None if no other run of
    this command may use the GPU at the same time. alone: True if runs of other commands may not use the GPU at that
    time either."""

    on_gpu: bool
    memory_gib: float | None
    alone: bool = False

    @property
    def order(self) -> int:
        """Return a number for the order of execution. A task begins after all tasks with a lower number have ended."""
        if probe_named(self.run.probe).timed:
            return TIMED + self.run.measurement
        return EXCLUSIVE if self.on_gpu and self.memory_gib is None else NOT_TIMED


def tasks_of(work: Iterable[Work], machine: Machine) -> list[Task]:
    """Return a task for each run, sorted by `order`. Among tasks of equal order, the longest come first."""
    tasks = []
    for one in work:
        on_gpu = bool(machine.gpus) and needs_gpu(one.run)
        memory = gpu_memory_gib(one.run) if on_gpu else None
        # a timing of two commits has a process for each commit, and each process needs this memory
        with_context = None if memory is None else memory + len(one.run.commits) * CONTEXT_GIB
        alone = on_gpu and not shares_gpu(one.run)
        tasks.append(Task(one.run, one.directory, one.tell, one.over, on_gpu, with_context, alone))
    return sorted(tasks, key=lambda task: (task.order, -_size(task)))


def _size(task: Task) -> float:
    """Return a number that estimates how long a task takes: the steps of all arms, multiplied by the declared memory.

    A comparison of kernels has no steps. Its number is instead computed from the number of combinations of operations,
    data types and input magnitudes.
    """
    run = task.run
    if probe_named(run.probe).grid:
        grid = (len(values) for values in run.settings.values() if isinstance(values, list | dict))
        return OPENING * (1 + math.prod(grid))
    steps = sum(
        arm.replicas * (OPENING + run.workload.steps * (WATCHED if arm.observe_syncs else 1))
        for arm in run.arms.values()
    )
    return steps * (run.workload.needs.memory_gib or 1.0)


def _processors(machine: Machine) -> int:
    """Return how many processors runs may use. With a GPU, supervision and imports keep a quarter of the processors."""
    return max(1, usable_cores() * 3 // 4) if machine.gpus else usable_cores()


class Schedule:
    """Executes tasks in worker processes. A thread supervises each worker. When `execute` returns or raises, all
    threads and workers have ended."""

    def __init__(self, machine: Machine, interpreters: Interpreters, checkout: Checkout | None = None) -> None:
        self._machine, self._interpreters = machine, interpreters
        self._uuid = machine.gpus[0].uuid if machine.gpus else None
        self._stop = threading.Event()
        self._company = Company(interpreters=interpreters, locked=True, checkout=checkout)
        self._running: dict[Future[None], Task] = {}
        self._turn, self._share = GpuTurn((), print), 0.0
        # tasks to execute once more, because they ran out of memory while other commands used the GPU
        self._again: list[Task] = []
        # The number of running threads. If a signal interrupts the start of a thread, the thread pool does not wait for
        # the thread. Therefore `execute` waits until this number is 0.
        self._at_work, self._changed = 0, threading.Condition()

    def execute(self, tasks: Sequence[Task]) -> None:
        """Execute all tasks. If a worker dies, only its run is affected. An exception in `execute` ends all workers."""
        waiting = list(tasks)
        self._interpreters.expect(sum(not task.run.repeats for task in waiting))
        self._company.threads = self._threads(waiting)
        threads = max((self._places(task) for task in waiting), default=1)
        on_gpu = [task for task in waiting if task.on_gpu]
        uuids = [uuid for task in on_gpu for uuid in gpus_of(task.run, self._machine.gpus)]
        self._turn = GpuTurn(uuids, lambda waits: on_gpu[0].tell(Progress(on_gpu[0].run.id, waits, 0.0)))
        self._share = self._share_of(on_gpu)
        with closing(self._turn), ThreadPoolExecutor(threads) as pool:
            try:
                with self._company.turns.present(self._interpreters):
                    while waiting or self._running or self._again:
                        while self._again:
                            waiting.append(self._again.pop())
                        self._begin(waiting, pool)
                        self._take_leave()
            except BaseException:
                with self._changed:
                    self._stop.set()
                pool.shutdown(cancel_futures=True)
                with self._changed:
                    self._changed.wait_for(lambda: not self._at_work)
                raise

    def _begin(self, waiting: list[Task], pool: ThreadPoolExecutor) -> None:
        """Start every waiting task that may execute at the same time as the tasks that are already running."""
        for task in list(waiting):
            if self._may_begin(task, waiting):
                waiting.remove(task)
                if task.on_gpu:
                    self._take_turn(task)
                self._running[pool.submit(self._one, task)] = task

    def _take_turn(self, task: Task) -> None:
        """Wait until this command may use the GPU: alone if `task` must be alone, and otherwise with the command's
        share of the memory."""
        if self._turn.take(ALONE if task.alone else self._share) and self._uuid is not None:
            self._company.before = processes_on(self._uuid)

    def _share_of(self, tasks: Sequence[Task]) -> float:
        """Return which share of the GPU's memory this command needs. Only those of the `tasks` count that can share the
        GPU with other commands."""
        sharing = [task.memory_gib for task in tasks if not task.alone]
        declared = sum(memory for memory in sharing if memory is not None)
        share = min(GPU_SHARE, declared / (self._machine.gpu_memory_gib or 1.0))
        return max(share, UNDECLARED_SHARE if None in sharing else 0.0)

    def _take_leave(self) -> None:
        """Wait a moment, and remove tasks that have ended. If an exception ended a task's thread, raise this exception.
        The death of a worker alone raises nothing."""
        for future in wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED).done:
            del self._running[future]
            future.result()

    def _may_begin(self, task: Task, waiting: Sequence[Task]) -> bool:
        """Return True if `task` may begin: all tasks of a lower order have ended, `task` reads no tensors of a task
        that has not ended, its probe allows one more run on the GPU, and there are enough processors and enough
        memory."""
        running = list(self._running.values())
        if any(other.order < task.order for other in (*running, *waiting)) or len(running) >= self._places(task):
            return False
        if any(awaits(task.run, other.run) for other in (*running, *waiting)):
            return False
        if not task.on_gpu:
            return True
        others = [other for other in running if other.on_gpu]
        most = probe_named(task.run.probe).most_on_gpu
        if most is not None and sum(other.run.probe == task.run.probe for other in others) >= most:
            return False
        if task.memory_gib is None or any(other.memory_gib is None for other in others):
            return not others
        given = sum(other.memory_gib or 0.0 for other in others)
        return not others or given + task.memory_gib <= GPU_SHARE * self._machine.gpu_memory_gib

    def _places(self, task: Task) -> int:
        """Return how many tasks like `task` this machine's processors and memory can execute at the same time. For
        timings only the memory counts, because at any time only one of the timings measures."""
        processes = 1 + len(task.run.commits) if task.order >= TIMED and len(task.run.commits) > 1 else 1
        by_memory = max(1, int(self._machine.host_memory_gib / (HOST_GIB * processes)))
        return by_memory if task.order >= TIMED else min(_processors(self._machine), by_memory)

    def _threads(self, tasks: Sequence[Task]) -> int | None:
        """Return the number of host threads for each worker that is not timed; None if the user has set
        OMP_NUM_THREADS. The number is equal for all these workers, because their results are compared bit by bit."""
        if "OMP_NUM_THREADS" in os.environ:
            return None
        beside = min(_processors(self._machine), sum(task.order == NOT_TIMED for task in tasks))
        return max(1, usable_cores() // max(1, beside))

    def _one(self, task: Task) -> None:
        with self._changed:
            if self._stop.is_set():
                return
            self._at_work += 1
        try:
            self._supervised(task)
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    def _supervised(self, task: Task) -> None:
        alone = self._turn.alone
        death = supervisor.execute(
            task.run,
            task.directory,
            task.tell,
            gpu_uuid=self._uuid if task.on_gpu else None,
            stop=self._stop,
            # Hide the GPU from runs that need no GPU. Otherwise such a run could use the GPU and disturb other runs.
            variables={} if task.on_gpu or self._uuid is None else {"CUDA_VISIBLE_DEVICES": ""},
            company=self._company,
        )
        if task.on_gpu and not alone and ran_out_of_memory(task.directory, death):
            self._again.append(replace(task, alone=True, memory_gib=None))
            return
        task.over(death)
