"""Verdicts as they fall: a unit is judged as soon as all its runs have ended, by the judges that judge it at the end.

They are told to people and kept nowhere. At the end everything is judged anew, and that stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from harness.contract.load import LoadedContract
from harness.evidence.plan_records import Run, Unit
from harness.judge.verdict import Verdict
from harness.judging import judge_attempt
from harness.run_directory.bundle import Bundle
from harness.run_directory.shards import Attempt

Waiting = tuple[Collection[str], Callable[[], None]]  # the runs that something rests on, and what tells of it


class AsTheyEnd:
    """Calls each of `waiting` once, as soon as all its runs have ended; `look` is called from several threads.

    Nothing is called while timings measure: they are to have the machine to themselves.
    """

    def __init__(self, waiting: Sequence[Waiting], runs: Sequence[Run]) -> None:
        self._waiting = list(waiting)
        self._timed = {run.id for run in runs if run.probe == "throughput"}
        self._lock = threading.Lock()

    def look(self, ended: Collection[str]) -> None:
        """`ended`: the names of all runs that have."""
        names = set(ended)
        if self._timed & names and self._timed - names:
            return
        with self._lock:
            ready = [each for each in self._waiting if names.issuperset(each[0])]
            self._waiting = [each for each in self._waiting if each not in ready]
            for _, tell in ready:
                with suppress(Exception):  # what cannot be judged now is met again at the end, which tells of it
                    tell()


def units_as_they_end(
    bundle: Bundle, contracts: Sequence[LoadedContract], runs: Sequence[Run], tell: Callable[[Verdict], None]
) -> AsTheyEnd:
    """Tells of the verdict of each unit that has runs. bundle: the run directory that is being made."""
    models = [loaded.contract for loaded in contracts]

    def judged(unit: Unit) -> None:
        evidence = [bundle.evidence(name) for name in unit.runs]
        tell(judge_attempt(Attempt(unit, evidence, bundle), models))

    return AsTheyEnd([(unit.runs, partial(judged, unit)) for unit in bundle.header.units if unit.runs], runs)
