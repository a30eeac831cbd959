"""Find the last run that timed each claim of a contract. Its noise predicts the noise of the claim's next run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.contract.schema import Contract, parts_of
from harness.errors import EvidenceError
from harness.evidence.run_evidence import RunEvidence
from harness.judging.context import situation_of
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.speed_figures import LastTiming, Recorded
from harness.run_directory.bundle import Bundle, read_bundle
from harness.run_directory.places import recorded_before
from harness.run_directory.shards import name_of
from harness.run_directory.verdict_file import read_verdicts


def last_timings(contracts: Sequence[Contract], folders: Sequence[Path]) -> list[LastTiming]:
    """Return the last timing of each claim and workload in the run directories below `folders`, if there is a timing.

    Run directories are searched in the order of their names, which begin with a date, newest first. Unreadable
    directories are left out.
    """
    wanted = {
        (contract.id, claim.id, workload): part
        for contract in contracts
        for claim in contract.claims
        for part in parts_of(claim)
        if isinstance(part, ThroughputRatio)
        for workload in claim.judged_on
    }
    runs = [run for folder in folders for run in recorded_before(folder)] if wanted else []
    found = []
    for path in sorted(runs, key=lambda run: run.name, reverse=True):
        here = wanted.keys() & _measured(path)
        if not here:
            continue
        try:
            bundle = read_bundle(path)
            runs_of = {unit: _runs(bundle, unit) for unit in here}
        except EvidenceError:
            continue
        for unit in sorted(here):
            part, timed = wanted[unit], runs_of[unit]
            demanded = part.resolved(situation_of(part, unit[2], bundle.header.environment.gpu, timed))
            if isinstance(demanded, ThroughputRatio) and (recorded := Recorded.of(demanded, timed)) is not None:
                del wanted[unit]
                found.append(LastTiming(*unit, path.name, demanded, recorded))
    return found


def _measured(path: Path) -> set[tuple[str, str, str]]:
    """Return (contract, claim, workload) of each verdict in the run's `verdicts.json` that has the figure `mean_ratio`.
    For a published run, the archive is not unpacked."""
    try:
        verdicts = read_verdicts(path).claims
    except EvidenceError:
        return set()
    return {(one.contract, one.claim, one.workload) for one in verdicts if "mean_ratio" in one.figures}


def _runs(bundle: Bundle, name: tuple[str, str, str]) -> list[RunEvidence]:
    return [bundle.evidence(run) for unit in bundle.header.units if name_of(unit) == name for run in unit.runs]
