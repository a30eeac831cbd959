"""Execute planned runs and write their evidence into a run directory. Where possible, runs are executed in parallel."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.commits.checkout import Checkout
from harness.devices import environment
from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.evidence.redaction import Redaction
from harness.evidence.run_evidence import Death
from harness.platform.paths import moved_caches
from harness.platform.signals_noted import noted
from harness.run_directory.interrupted_run import Journal
from harness.run_directory.writer import BundleWriter, settle_run

if TYPE_CHECKING:
    from harness.api.judged import AsTheyEnd
    from harness.execution.supervisor import Interpreters
    from harness.execution.watched_worker import Progress
    from harness.judging.verdict import Verdict
    from harness.run_directory.verdict_file import Row


class Watch(Protocol):
    """An object that shows the progress of runs. The harness calls its methods from several threads."""

    def begins(self, runs: Sequence[Run]) -> None:
        """Receive the runs that will be executed. Every other planned run ended before the command was resumed, or uses
        the evidence of an executed run."""

    def moves(self, run: Run, phase: str, seconds: float) -> None:
        """Receive the name of the phase that a run has entered, `seconds` after the run's start. The phase is "" at the
        run's end."""

    def judged(self, verdict: Verdict) -> None:
        """Receive the verdict of a unit, as soon as every arm that the verdict depends on has ended."""

    def drilled(self, row: Row) -> None:
        """Receive the result of a planted fault, as soon as all runs that the result depends on have ended."""


def work_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return, for each run that will be executed, a list of this run and the runs that use its evidence. The keys are
    the ids of the executed runs."""
    from harness.execution.sharing import hosted

    return {host.run.id: host.runs for host in hosted(runs)}


def execute(
    runs: Sequence[Run],
    writer: BundleWriter,
    watch: Watch | None = None,
    interpreters: Interpreters | None = None,
    redacted: Redaction | None = None,
    checkout: Checkout | None = None,
    journal: Journal | None = None,
    early: AsTheyEnd | None = None,
    *,
    pages: bool = True,
) -> None:
    """Execute the runs, in parallel where possible. If a worker dies, only the units that need its evidence are
    affected.

    If several runs have equal work, this work is executed once.
    interpreters: processes that were started in advance and wait for work; this call ends them. redacted: removes names
    of host, user and folders from the evidence, also from the evidence of an interrupted run. checkout: the worktree of
    the baseline's commit. journal: a record of the runs that have ended; these runs are not executed again. early: an
    object that judges units whenever a run enters another phase, and whenever the end of a run is recorded.
    pages: True if the harness draws pages afterwards. The libraries for drawing are then imported while runs are
    executed.
    """
    from harness.execution.schedule import Schedule, Work, tasks_of
    from harness.execution.sharing import as_one, hosted, lane_directories, write_guests
    from harness.execution.supervisor import Interpreters

    directories = {run.id: writer.evidence_directory(run.id) for run in runs}
    before = {} if journal is None else journal.content.ended
    hosts = [host for host in hosted(runs) if not before.keys() >= {run.id for run in host.runs}]
    by_name = {host.run.id: host.run for host in hosts}
    if watch is not None:
        watch.begins(list(by_name.values()))

    executed = {host.run.id: [run.id for run in host.runs] for host in hosts}

    def report_progress(progress: Progress) -> None:
        if watch is not None:
            watch.moves(by_name[progress.run_id], progress.phase, progress.seconds)
        if early is not None and progress.phase and not noted:
            early.moves(executed[progress.run_id], progress.phase)

    machine = environment.machine()
    if pages:
        threading.Thread(target=_import_for_pages).start()
    work: list[Work] = []
    for host in hosts:
        write_guests(host, directories)
        lanes = lane_directories(host.run, directories[host.run.id])
        tells = as_one(report_progress, len(lanes))
        over = _End([directories[run.id] for run in host.runs], len(lanes), redacted, journal, early)
        work += [Work(lane, directory, tell, over) for (lane, directory), tell in zip(lanes, tells, strict=True)]
    try:
        with interpreters or Interpreters(len(work)) as waiting:
            Schedule(machine, waiting, checkout).execute(tasks_of(work, machine))
    finally:
        if redacted is not None:
            _redact_the_rest(writer.path / layout.EVIDENCE, redacted, journal)


class _End:
    """A function object that is called whenever a process of a run ends. After the last process, it removes names of
    host, user and folders from the run's evidence, and records the run as ended.

    The names are removed before the run is recorded in the journal (the record of ended runs), because the evidence of
    a recorded run must not change.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        processes: int,
        redacted: Redaction | None,
        journal: Journal | None,
        early: AsTheyEnd | None,
    ) -> None:
        self._directories, self._left = directories, processes
        self._redacted, self._journal, self._early = redacted, journal, early
        self._lock = threading.Lock()

    def __call__(self, death: Death | None) -> None:
        with self._lock:
            # A signal that ends the whole command may also have ended this worker. So treat the run as interrupted.
            if death is not None and noted:
                return
            self._left -= 1
            # This process may have completed some arms. Units that need only these arms can be judged early.
            if self._left and self._early is not None:
                self._early.moves([each.name for each in self._directories], "")
            if self._left or self._journal is None:
                return
            for directory in self._directories:
                if os.path.lexists(directory):
                    settle_run(directory)
                    if self._redacted is not None:
                        self._redacted.directory(directory)
            self._journal.note_ends(directory.name for directory in self._directories)
        if self._early is not None:
            self._early.look(self._journal.content.ended.keys())


def _redact_the_rest(evidence: Path, redacted: Redaction, journal: Journal | None) -> None:
    """Remove names of host, user and folders from the evidence of runs that the journal (list of ended runs) lacks."""
    ended = {} if journal is None else journal.content.ended
    for entry in evidence.iterdir() if evidence.is_dir() else []:
        if entry.name not in ended and entry.is_dir() and not entry.is_symlink():
            redacted.directory(entry)


def _import_for_pages() -> None:
    """Import the modules of the report while runs are executed. Writing the report then takes a second less."""
    with suppress(Exception):  # ignore errors: the report imports these modules again, and reports the error
        os.environ.update(moved_caches())
        for module in ("harness.report.html", "matplotlib.figure", "matplotlib.backends.backend_svg"):
            importlib.import_module(module)
