"""Look up when the runs of each unit were at work, in the last run directory that has the unit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from harness.costs.kinds import Kind
from harness.costs.spans import spans
from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.worker_times import read_times
from harness.run_directory.bundle import Bundle, read_bundle
from harness.run_directory.places import recorded_before
from harness.run_directory.verdict_file import read_verdicts

Name = tuple[str, str, str]  # of a unit: contract, claim, workload


class Busy(NamedTuple):
    """A time in which a worker did not wait, in seconds by the clock of the directory's machine."""

    directory: str
    began: float
    ended: float


def busy_times(wanted: Collection[Name], folders: Sequence[Path]) -> dict[Name, Sequence[Busy]]:
    """Return the busy times of each wanted unit's runs; a unit that was nowhere recorded has no entry.

    Run directories are searched from the newest name, folder by folder, published archives too, until every unit is
    found. None is unpacked that has no verdict of a unit that is still missing.
    """
    found: dict[Name, Sequence[Busy]] = {}
    for folder in folders:
        for path in recorded_before(folder):
            try:
                judged = {(one.contract, one.claim, one.workload) for one in read_verdicts(path).claims}
                if missing := (judged & set(wanted)) - found.keys():
                    found |= _busy_in(read_bundle(path), missing)
            except (EvidenceError, OSError):
                continue
    return found


def busy_seconds(times: Iterable[Busy]) -> float:
    """Return for how long at least one worker was busy: what runs took that were executed side by side."""
    total, until = 0.0, ("", 0.0)
    for directory, began, ended in sorted(times):
        since = max(began, until[1]) if directory == until[0] else began
        if ended > since:
            total, until = total + ended - since, (directory, ended)
    return total


def _busy_in(bundle: Bundle, wanted: Collection[Name]) -> dict[Name, Sequence[Busy]]:
    runs = {
        name: unit.runs
        for unit in bundle.header.units
        if (name := (unit.contract, unit.claim, unit.workload)) in wanted
    }
    times = {
        run: [
            Busy(bundle.path.name, span.began, span.ended)
            for worker in read_times(bundle.root / layout.EVIDENCE / run)
            for span in spans(worker)
            if span.kind is not Kind.WAITING
        ]
        for run in set(chain.from_iterable(runs.values()))
    }
    of_units = {name: [time for run in ids for time in times[run]] for name, ids in runs.items()}
    return {name: busy for name, busy in of_units.items() if busy}
