"""Execute a drill's runs, and read their evidence.

Every run has a process of its own, as everywhere: a failed capture or a poisoned stream costs its own row. (Sharing
a process between faults would save about a second of imports a run; leaving out unfaulted arms saves more.) On a
machine without a GPU two workers run at a time, each with one thread; a GPU takes one run at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from harness.drill.evidence_faults import EVIDENCE_CHANGES
from harness.drill.merge import merged
from harness.drill.plan import DrillPlan, FaultedRun
from harness.evidence.bundle import Bundle
from harness.evidence.environment import Machine
from harness.evidence.model import Run, RunEvidence
from harness.runners import supervisor

Watch = Callable[[Run, str, float], None]
CPU_LANES = 2
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class _Interrupted(Exception):  # noqa: N818 - it ends a lane, and nobody sees it
    """The drill was interrupted: raised in a lane to kill its worker."""


def execute(
    runs: Sequence[Run], directory_of: Callable[[str], Path], machine: Machine, watch: Watch | None = None
) -> None:
    """Execute every run. On an interrupt, running workers are killed at their next change of phase."""
    lane = _Lane(directory_of, machine.gpus[0].uuid if machine.gpus else None, watch)
    lanes = 1 if machine.cuda else min(CPU_LANES, os.cpu_count() or 1)
    if lanes == 1:
        for run in runs:
            lane.execute(run)
        return
    with _one_thread_a_worker(), ThreadPoolExecutor(lanes) as pool:
        try:
            for future in as_completed([pool.submit(lane.execute, run) for run in runs]):
                future.result()
        except BaseException:
            lane.stop.set()
            raise


class _Lane:
    """Executes one run after the other, until `stop`."""

    def __init__(self, directory_of: Callable[[str], Path], gpu_uuid: str | None, watch: Watch | None) -> None:
        self._directory_of, self._gpu_uuid, self._watch = directory_of, gpu_uuid, watch
        self.stop = threading.Event()

    def execute(self, run: Run) -> None:
        if self.stop.is_set():
            return

        def tell(progress: supervisor.Progress) -> None:
            if self.stop.is_set():
                raise _Interrupted
            if self._watch is not None:
                self._watch(run, progress.phase, progress.seconds)

        supervisor.execute(run, self._directory_of(run.id), tell, gpu_uuid=self._gpu_uuid)


@contextmanager
def _one_thread_a_worker() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def runs_of(planned: DrillPlan) -> list[Run]:
    """What to execute: the controls, then the faulted runs."""
    faulted = [each.executed for each in planned.faulted.values() if each.executed is not None]
    return [*planned.controls.runs, *faulted]


def evidence_of(name: str, planned: DrillPlan, bundle: Bundle, fault: str) -> RunEvidence:
    """The evidence of one faulted run, joined with its control's arms or planted with a fault of the evidence."""
    faulted = planned.faulted[name]
    change = EVIDENCE_CHANGES.get(fault)
    if change is not None and faulted.donor is not None:
        return change(bundle.evidence(faulted.donor))
    return _joined(faulted, bundle)


def _joined(faulted: FaultedRun, bundle: Bundle) -> RunEvidence:
    seen = bundle.evidence(faulted.planned.id)
    if faulted.executed is None or faulted.donor is None:
        return seen  # a run that was planned and never executed reads as one that left nothing
    return merged(faulted.planned, seen, bundle.evidence(faulted.donor))
