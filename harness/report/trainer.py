"""Name the trainer of a run, and the commit of the trainer's own repository, which need not be the harness's."""

from __future__ import annotations

from harness.evidence.environment_records import CHANGES, quoted
from harness.report.view import ReportView

NOT_RECORDED = "not recorded"
# What lies in the harness's own repository: of runs that recorded no trainer's commit, theirs is the harness's.
_BESIDE = ("reference_impl", "examples")


def trainers(view: ReportView) -> list[str]:
    """Return the systems under test as `module:Class`, in the order of the contracts."""
    return list(dict.fromkeys(contract.system for contract in view.contracts))


def trainer_commit(view: ReportView) -> str:
    """Return the trainer's commit as people quote it, with its uncommitted changes; of several, each once.

    With `--baseline` it is the candidate's. A run from before trainers were recorded knows only the harness's commit:
    that is the trainer's if both lie in one repository, and otherwise the trainer's is not recorded.
    """
    commits = view.header.commits
    if commits is not None:
        return quoted(commits.candidate.commit + (CHANGES if commits.candidate.changes else ""))
    found = [_commit_of(view, system) for system in trainers(view)]
    return ", ".join(dict.fromkeys(quoted(commit) for commit in found if commit)) or NOT_RECORDED


def harness_commit(view: ReportView) -> str:
    """Return the commit of the harness's own checkout, in the same form."""
    commit = view.header.environment.git.commit
    return quoted(commit) if commit else NOT_RECORDED


def _commit_of(view: ReportView, system: str) -> str | None:
    recorded = view.header.environment
    if system in recorded.trainers:
        return recorded.trainers[system].commit
    beside = system.partition(":")[0].partition(".")[0] in _BESIDE
    return recorded.git.commit if beside and not recorded.trainers else None
