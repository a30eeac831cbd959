"""Judge units early: each as soon as all its arms have ended, by the judges that judge it at the end.

People read these verdicts, and no file keeps them. At the end everything is judged anew, and that stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType

from harness.api.judged import judge_attempt
from harness.contract.load import LoadedContract
from harness.evidence.plan_records import Run, Unit
from harness.judging.verdict import Verdict
from harness.kinds import probe_named
from harness.planning.demanded import arms_demanded
from harness.report.view import ReportView
from harness.run_directory.bundle import Bundle
from harness.run_directory.shards import Attempt

Part = tuple[str, str]  # a run and one of its arms
Waiting = tuple[Collection[str | Part], Callable[[], None]]  # what something rests on, and what reports it
Judged = Callable[[Verdict, ReportView], None]
Ended = Callable[[str], Collection[str]]  # the arms of a run that have ended, by its name


class AsTheyEnd:
    """Calls each of `waiting` once, as soon as all that it rests on has ended; called from several threads.

    Nothing is called while timings measure: they are to have the machine to themselves.
    """

    def __init__(
        self,
        waiting: Sequence[Waiting],
        runs: Sequence[Run],
        arms: Mapping[str, Ended] = MappingProxyType({}),
    ) -> None:
        self._waiting, self._arms = list(waiting), arms
        self._timed = {run.id for run in runs if probe_named(run.probe).timed}
        self._ended: set[str | Part] = set()
        self._execution: dict[str, str] = {}  # of runs under way: the arm and replica that was seen last
        self._lock = threading.Lock()

    def look(self, ended: Collection[str]) -> None:
        """Call what is ready now. `ended`: the names of all runs that have ended."""
        with self._lock:
            self._ended |= set(ended)
            self._tell()

    def moves(self, runs: Iterable[str], phase: str) -> None:
        """Note a new phase of runs that one process executes, and call what is ready: arms before it may have ended."""
        with self._lock:
            execution = phase.partition(": ")[0]
            for name in runs:
                if name in self._arms and self._execution.get(name) != execution:
                    self._execution[name] = execution
                    with suppress(Exception):  # what cannot be read now is read again at the end
                        self._ended |= {(name, arm) for arm in self._arms[name](name)}
            self._tell()

    def _tell(self) -> None:
        if self._timed & self._ended and self._timed - self._ended:
            return
        ready = [each for each in self._waiting if all(map(self._has_ended, each[0]))]
        self._waiting = [each for each in self._waiting if each not in ready]
        for _, tell in ready:
            with suppress(Exception):  # what cannot be judged now is met again at the end, which reports it
                tell()

    def _has_ended(self, part: str | Part) -> bool:
        return part in self._ended or (isinstance(part, tuple) and part[0] in self._ended)


def units_as_they_end(
    bundle: Bundle, contracts: Sequence[LoadedContract], runs: Sequence[Run], tell: Judged
) -> AsTheyEnd:
    """Return a watcher that reports the verdict of each unit that has runs, and what the unit was judged on.

    bundle: the run directory that is being made.
    """
    models = [loaded.contract for loaded in contracts]
    # arms of several commits and of several ranks have evidence in several places
    apart = {run.id: run for run in runs if probe_named(run.probe).arm_by_arm and run.ranks == 1}
    if bundle.header.commits:
        apart = {}

    def judged(unit: Unit) -> None:
        made = bundle.so_far()
        evidence = [made.evidence(name) for name in unit.runs]
        verdict = judge_attempt(Attempt(unit, evidence, made), models)
        tell(verdict, ReportView(made.header, models, [verdict], {each.run_id: each for each in evidence}))

    def parts(unit: Unit) -> list[str | Part]:
        [contract] = [each for each in models if each.id == unit.contract]
        [claim] = [each for each in contract.claims if each.id == unit.claim]
        arms = arms_demanded(contract, claim, unit.workload)
        return [
            part
            for name in unit.runs
            for part in ([(name, arm) for arm in apart[name].arms if arm in arms] if name in apart else [name])
        ]

    def ended(name: str) -> list[str]:
        seen = bundle.so_far().evidence(name)
        planned = apart[name].arms
        return [arm for arm in planned if arm in seen.failed or len(seen.arms.get(arm, [])) == planned[arm].replicas]

    waiting = [(parts(unit), partial(judged, unit)) for unit in bundle.header.units if unit.runs]
    return AsTheyEnd(waiting, runs, dict.fromkeys(apart, ended))
