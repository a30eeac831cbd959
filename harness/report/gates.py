"""Which runs are the parts of one gate."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.history_runs import HistoryRun
from harness.report.trainer import trainers


def gates(runs: Sequence[HistoryRun]) -> list[list[HistoryRun]]:
    """The runs in their order, those of one gate together where its first part stands.

    Parts have the beginning of their name in common, are of the same sources, commits, trainers and contracts, and
    share no unit: the second run of a unit is another gate's.
    """
    found: dict[object, list[list[HistoryRun]]] = {}
    ordered: list[list[HistoryRun]] = []
    for run in runs:
        known = found.setdefault(_sources(run), [])
        gate = next((parts for parts in known if _fits(run, parts)), None)
        if gate is None:
            gate = []
            known.append(gate)
            ordered.append(gate)
        gate.append(run)
    return ordered


def _sources(run: HistoryRun) -> tuple[object, ...]:
    if run.view is None:
        return (run.name,)
    header = run.view.header
    commits = header.commits.model_dump_json() if header.commits is not None else ""
    return run.gate, header.digests.source, header.environment.git.commit, commits, tuple(trainers(run.view))


def _fits(run: HistoryRun, parts: Sequence[HistoryRun]) -> bool:
    """Whether no part has a unit of the run's, or another text of a contract of the run's."""
    return all(_units(run).isdisjoint(_units(part)) and _alike(_contracts(run), _contracts(part)) for part in parts)


def _units(run: HistoryRun) -> set[tuple[str, str, str]]:
    verdicts = run.view.verdicts if run.view is not None else []
    return {(verdict.contract, verdict.claim, verdict.workload) for verdict in verdicts}


def _contracts(run: HistoryRun) -> dict[str, str]:
    return run.view.header.digests.contracts if run.view is not None else {}


def _alike(ours: dict[str, str], theirs: dict[str, str]) -> bool:
    return all(theirs[name] == digest for name, digest in ours.items() if name in theirs)
