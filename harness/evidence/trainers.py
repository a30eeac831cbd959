"""Of which commit the systems under test are: that of the repository in which each lies, the harness's or another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.evidence.environment_records import CHANGES, GitFacts
from harness.evidence.git import git
from harness.evidence.modules import module_spec


def trainers(systems: Iterable[str]) -> dict[str, GitFacts]:
    """The commit of each system, named as `module:attribute`, with `+changes` when its repository's files differ.

    Without a commit: the module is not found, or no repository has its file, as of an installed package. Nothing of
    the system is imported.
    """
    return {system: GitFacts(commit=_commit(system.partition(":")[0])) for system in systems}


def _commit(module: str) -> str | None:
    spec = module_spec(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin).resolve()
    if git(file.parent, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    commit = git(file.parent, "rev-parse", "HEAD")
    changes = commit and git(file.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    return f"{commit}{CHANGES}" if changes else commit
