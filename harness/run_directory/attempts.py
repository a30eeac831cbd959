"""Count how often a timing was tried: in the run directories of one folder, in those of a gate, and by CI.

A timing that is measured until it passes proves less than its error rates state, so every attempt is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.evidence import layout
from harness.evidence.files import readable
from harness.kinds import probe_named
from harness.run_directory.bundle import Attempts, Header, TimedBefore

_Timing = tuple[str, str, str]  # contract, claim, workload
# What CI calls the attempt of a job, and the number that it gives to the first one.
CI_ATTEMPTS = {
    "GITHUB_RUN_ATTEMPT": 1,
    "BUILDKITE_RETRY_COUNT": 0,
    "SYSTEM_JOBATTEMPT": 1,  # Azure Pipelines
}


def attempts_before(header: Header, reports: Path, environment: Mapping[str, str]) -> Attempts:
    """Return what was tried before the run of this header, which is not in the folder yet.

    Every run of the folder counts, whatever its verdicts, that planned to time the unit with equal sources, an equal
    contract and an equal baseline's commit, and was no drill. A directory whose `run.json` cannot be read is not a run.
    """
    return Attempts(timings=_together(timings(header), _same_sources(header, reports)), ci=_of_ci(environment))


def joined_attempts(headers: Mapping[str, Header]) -> Attempts:
    """Return what directories that are judged together, given by name, and the runs before them tried.

    A unit is judged by its earliest attempt, which is not counted among the others.
    """
    by_start = sorted(headers, key=lambda name: (headers[name].started_at, name))
    timed = {name: timings(headers[name]) for name in by_start}
    found = []
    for unit in dict.fromkeys(unit for units in timed.values() for unit in units):
        first, *others = [name for name in by_start if unit in timed[name]]
        before = [each for name in (first, *others) for each in headers[name].attempts.directories(unit)]
        names = [name for name in dict.fromkeys([*before, *others]) if name != first]
        found += [_timed_before(unit, names)] if names else []
    numbers = [header.attempts.ci for header in headers.values() if header.attempts.ci is not None]
    return Attempts(timings=found, ci=max(numbers, default=None))


def timings(header: Header) -> dict[_Timing, str]:
    """Return the units that are timed, with the digests of their contracts."""
    return {
        (unit.contract, unit.claim, unit.workload): header.digests.contracts.get(unit.contract, "")
        for unit in header.units
        if any(probe_named(header.runs[run]).timed for run in unit.runs if run in header.runs)
    }


def _same_sources(header: Header, reports: Path) -> dict[str, Header]:
    """Return the headers of the folder's runs with the same sources, by their directories' names, in that order."""
    found = {}
    for path in sorted(reports.glob(f"*/{layout.HEADER}")):
        other = readable(path, Header)
        if other is not None and other.purpose == "verify" and _sources(other) == _sources(header):
            found[path.parent.name] = other
    return found


def _sources(header: Header) -> tuple[str, str | None]:
    """Return the digest of all sources, and the baseline's commit where the run compares two commits."""
    return header.digests.source, header.commits.baseline.commit if header.commits is not None else None


def _together(wanted: Mapping[_Timing, str], others: Mapping[str, Header]) -> list[TimedBefore]:
    timed = {name: timings(header) for name, header in others.items()}
    found = ((unit, [name for name in timed if timed[name].get(unit) == digest]) for unit, digest in wanted.items())
    return [_timed_before(unit, names) for unit, names in found if names]


def _timed_before(unit: _Timing, names: Iterable[str]) -> TimedBefore:
    contract, claim, workload = unit
    return TimedBefore(contract=contract, claim=claim, workload=workload, directories=list(names))


def _of_ci(environment: Mapping[str, str]) -> int | None:
    """Return which attempt this is, by the first variable of the table that states it; None where none does."""
    for variable, first in CI_ATTEMPTS.items():
        value = environment.get(variable, "")
        if value.isascii() and value.isdigit() and len(value) < 10 and int(value) >= first:
            return int(value) - first + 1
    return None
