"""Check out the baseline's commit in a private worktree, and remove the worktree when it is no longer needed."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.commits.import_path import ImportPath, installed, rebased
from harness.commits.repository import RULE, GitFailed, Repository
from harness.errors import UsageError
from harness.evidence.commit_records import TwoCommits
from harness.platform.paths import add_working_directory


@dataclass(frozen=True)
class Checkout:
    """Both commits, where modules of the baseline's are found, and a folder for tensors that cross between them."""

    commits: TwoCommits
    import_path: ImportPath
    exchange: Path

    @property
    def commit(self) -> str:
        """Return the commit of the baseline."""
        return self.commits.baseline.commit

    def trained(self, commits: Collection[str | None]) -> list[str]:
        """Return HEAD of each tree that holds one of `commits`. None stands for the candidate's working tree."""
        trees = [self.import_path.root] if None in commits else []
        trees += [self.import_path.tree] if set(commits) - {None} else []
        return [Repository(Path(tree)).commit("HEAD") for tree in trees]


@contextmanager
def checked_out(name: str, systems: Sequence[str], reports: Path, *, named: str = "") -> Iterator[Checkout]:
    """Check out the commit `name` in a worktree of the systems' repository, for the duration of the block.

    The worktree is removed at the end, also after an error. reports: files in this folder do not count as changes.
    named: what the commit was asked for by, if not by `name`.
    Raises UsageError if there is no such commit, or if a system is in no repository, in another one, or not part of it.
    """
    add_working_directory()
    homes = {system: _home(system) for system in systems}
    repositories = {Repository.around(home): system for system, home in homes.items()}
    if len(repositories) > 1:
        got = ", ".join(f"{system} in {repository.root}" for repository, system in repositories.items())
        raise UsageError("--baseline compares two commits of one repository", got=got)
    [repository] = repositories
    for system, home in homes.items():
        if installed(home, repository.root) or repository.ignores(home):
            raise UsageError(RULE, where=system, got=f"its module in {home}, which no commit holds", remedy=_IN_TREE)
    baseline = repository.facts(repository.commit(name)).model_copy(update={"named": named or name})
    candidate = repository.facts(repository.commit("HEAD")).model_copy(
        update={"changes": repository.changes(reports.resolve())}
    )
    folder = Path(tempfile.mkdtemp(prefix="harness-baseline-")).resolve()
    tree, exchange = folder / "tree", folder / "exchange"
    try:
        exchange.mkdir()
        try:
            repository.check_out(baseline.commit, tree)
            baseline = baseline.model_copy(update={"lacks": repository.lacks(tree)})
        except GitFailed as error:
            got = f"git cannot check out {baseline.commit}: {error}"
            raise UsageError(RULE, where=str(repository.root), got=got) from error
        import_path = rebased(baseline.commit, repository.root, tree, homes.values())
        yield Checkout(TwoCommits(candidate=candidate, baseline=baseline), import_path, exchange)
    finally:
        _remove(repository, tree)
        shutil.rmtree(folder, ignore_errors=True)


def _remove(repository: Repository, tree: Path) -> None:
    """Remove the worktree and git's record of it, also where it is only half made."""
    try:
        repository.remove(tree)
    except GitFailed:  # it is half made; git forgets one that is gone
        shutil.rmtree(tree, ignore_errors=True)
        with suppress(GitFailed):
            repository.remove(tree)


_IN_TREE = "put the system into the repository, or install the repository in editable mode"


def _home(system: str) -> Path:
    """Return the folder on the import path that holds the system's package. Raises UsageError if there is none."""
    package = system.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    places = [] if spec is None else list(spec.submodule_search_locations or []) or [spec.origin or ""]
    if not places or not Path(places[0]).exists():
        remedy = f"run from the folder that holds `{package}`, install it, or put its folder on PYTHONPATH"
        raise UsageError(RULE, where=system, got=f"no module `{package}`", remedy=remedy)
    return Path(places[0]).resolve().parent
