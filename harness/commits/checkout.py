"""Check out the baseline's commit in a temporary git worktree, from which the baseline's processes import their
modules.

The worktree replaces only the modules of the repository. The harness and installed packages stay the same. A folder of
the import path that does not exist in the commit is left out of the path, so that a process never mixes modules of two
commits.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from harness.commits.import_path import ImportPath, installed, rebased
from harness.contract.accepted_baselines import AcceptedBaseline
from harness.errors import UsageError
from harness.evidence import layout
from harness.evidence.environment_records import SHORT, AcceptedRecord, CommitFacts, TwoCommits
from harness.evidence.sources import OF_A_CALL
from harness.platform.paths import add_working_directory

RULE = "--baseline must name a commit of the repository that contains the system"
_POINTER = b"version https://git-lfs.github.com/spec/"
_SUBMODULE = "160000"  # git's file mode of a submodule, an entry that names a commit of another repository
MOST_NAMED = 5
_HASH = re.compile(r"[0-9a-f]{7,64}")


class GitFailed(Exception):  # noqa: N818 - it is always caught, and reported as another error
    """git exited with an error. The text is the message that git printed."""


@dataclass(frozen=True)
class Repository:
    """A git repository. root: the folder of its working tree. Methods raise GitFailed if git fails."""

    root: Path

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """Return the repository that contains a folder. Raises UsageError if git is missing or finds no repository."""
        try:
            answer = _git(folder, "rev-parse", "--show-toplevel")
        except FileNotFoundError as error:
            install_git = "install git, or run without --baseline"
            raise UsageError(RULE, got="no program `git` on this machine", remedy=install_git) from error
        except GitFailed as error:
            raise UsageError(RULE, where=str(folder), got=str(error)) from error
        return cls(Path(answer).resolve())

    def commit(self, name: str) -> str:
        """Return the full hash of the commit that a branch, tag or other revision names. Raises UsageError for an
        unknown revision."""
        try:
            return _git(self.root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except GitFailed as error:
            fetched = self._fetched(name)
            fetch_first = f"fetch the commit first (`git fetch {fetched}`; in CI, check out the whole history)"
            raise UsageError(RULE, where=str(self.root), got=f"no commit `{name}`", remedy=fetch_first) from error

    def _fetched(self, name: str) -> str:
        """Return the arguments with which `git fetch` makes the revision `name` available in this repository, under its
        name."""
        for remote in _git(self.root, "remote").splitlines():
            if name.startswith(f"{remote}/"):
                return f"{remote} {name.removeprefix(f'{remote}/')}"
        return f"origin {name}" if _HASH.fullmatch(name) else f"origin {name}:{name}"

    def facts(self, commit: str) -> CommitFacts:
        """Return the commit's hash and the first line of its message."""
        return CommitFacts(commit=commit, subject=_git(self.root, "log", "-1", "--format=%s", commit))

    def has(self, commit: str) -> bool:
        """Return True if `commit` is the full hash of a commit in the repository. The hash of a tag is not accepted."""
        return self._agrees("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", printing=commit)

    def contains(self, commit: str, ancestor: str) -> bool:
        """Return True if `ancestor` is in the history of `commit`."""
        return self._agrees("merge-base", "--is-ancestor", ancestor, commit)

    def _agrees(self, *arguments: str, printing: str = "") -> bool:
        """Run git with these arguments. Return True if git exits without an error and its output equals `printing`."""
        try:
            return _git(self.root, *arguments) == printing
        except GitFailed:
            return False

    def changes(self, but: Path) -> int:
        """Return the number of files that differ from HEAD. New files count. Ignored files and files in the folder
        `but` do not count. Files in run directories do not count either, because the harness wrote them and no run
        executes them."""
        status = ["status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"]
        if but.is_relative_to(self.root) and but != self.root:
            status += ["--", ".", f":(exclude,literal){but.relative_to(self.root)}"]
        changed = [Path(entry[3:]) for entry in _git(self.root, *status).split("\0") if entry]
        folders = {folder for path in changed for folder in path.parents}
        runs = {folder for folder in folders if _is_run(self.root / folder)}
        return sum(runs.isdisjoint(path.parents) for path in changed)

    def ignores(self, path: Path) -> bool:
        """Return True if git ignores this path in the repository, for example a file of an installed package."""
        return self._agrees("check-ignore", "--quiet", str(path))

    def check_out(self, commit: str, folder: Path) -> None:
        """Check out the commit into a new worktree at `folder`."""
        _git(self.root, "worktree", "add", "--detach", "--quiet", str(folder), commit)

    def remove(self, folder: Path) -> None:
        """Remove a worktree, even if it has changes or is locked."""
        _git(self.root, "worktree", "remove", "--force", "--force", str(folder))

    def lacks(self, folder: Path) -> list[str]:
        """Return a line for each kind of content that the new worktree `folder` lacks. Such contents are submodules,
        and files that Git LFS stores."""
        entries = [entry.split("\t", 1) for entry in _names(_git(folder, "ls-tree", "-r", "-z", "HEAD"))]
        submodules = [name for mode, name in entries if mode.startswith(_SUBMODULE)]
        attributed = _names(_git(folder, "ls-files", "-z", "--", ":(attr:filter=lfs)"))
        pointers = [name for name in attributed if _is_pointer(folder / name)]
        kinds = (("submodule", "submodules", submodules), ("file of Git LFS", "files of Git LFS", pointers))
        return [f"without {_counted(one, many, names)}" for one, many, names in kinds if names]


def is_unignored(path: Path) -> bool:
    """Return True if the path is in a git repository, and git does not ignore the path. The path need not exist."""
    with suppress(UsageError):
        return not Repository.around(path.parents[1]).ignores(path)
    return False


def _is_run(folder: Path) -> bool:
    return (folder / layout.HEADER).is_file() and (folder / layout.EVIDENCE).is_dir()


def _names(text: str) -> list[str]:
    return [name for name in text.split("\0") if name]


def _is_pointer(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def _counted(one: str, many: str, names: Sequence[str]) -> str:
    more = ", …" if len(names) > MOST_NAMED else ""
    return f"{len(names)} {one if len(names) == 1 else many} ({', '.join(names[:MOST_NAMED])}{more})"


def _git(folder: Path, *arguments: str) -> str:
    """Run git and return what it prints. Raises GitFailed, and FileNotFoundError if git is not installed."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_CALL} | {"LC_ALL": "C"}
    done = subprocess.run(
        ["git", "-c", f"core.hooksPath={os.devnull}", "-C", str(folder), *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        check=False,
        # Run git in its own session. Ctrl-C in a terminal then sends SIGINT only to the harness, which cleans up.
        start_new_session=True,
    )
    if done.returncode != 0:
        raise GitFailed(_reason(done.stderr) or f"`git {arguments[0]}` ended with exit code {done.returncode}")
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def _reason(stderr: bytes) -> str:
    """Return git's `fatal:` line, or its last line if there is none. Lines after `fatal:` contain only advice."""
    printed = stderr.decode("utf-8", "replace").strip().splitlines()
    fatal = [line for line in printed if line.startswith("fatal:")]
    return [*fatal[:1], *printed[-1:], ""][0]


@dataclass(frozen=True)
class Checkout:
    """The commits that a run compares, and the import path for each baseline commit. exchange: the folder through which
    the processes of the two commits exchange tensors."""

    commits: TwoCommits
    import_paths: Mapping[str, ImportPath]  # keys: the commits of the baseline and of the accepted baselines
    exchange: Path

    @property
    def commit(self) -> str:
        """Return the baseline's commit."""
        return self.commits.baseline.commit

    @property
    def import_path(self) -> ImportPath:
        """Return the import path for the baseline's commit."""
        return self.import_paths[self.commit]

    def import_path_of(self, commits: Collection[str | None]) -> ImportPath | None:
        """Return the import path of a process whose arms use these commits; None if all arms use the working tree."""
        return next((self.import_paths[commit] for commit in commits if commit is not None), None)

    def trained(self, commits: Collection[str | None]) -> list[str]:
        """Return the hash of HEAD in each source tree whose code the process uses. commits: None stands for the working
        tree, a hash for the worktree of that commit."""
        trees = [self.import_path.root] if None in commits else []
        trees += [self.import_paths[commit].tree for commit in commits if commit is not None]
        return [Repository(Path(tree)).commit("HEAD") for tree in trees]


@contextmanager
def checked_out(
    name: str,
    systems: Sequence[str],
    reports: Path,
    *,
    named: str = "",
    accepted: Sequence[AcceptedBaseline] = (),
    day: date | None = None,
) -> Iterator[Checkout]:
    """Check out the commit `name` in a worktree of the systems' repository, which exists within the `with` block.

    Accepted baselines that are valid on `day` (UTC, by default today) get worktrees too. All worktrees are removed at
    the end, also after an error. reports: files in this folder do not count as changes of the working tree. named: the
    name by which the user requested the commit, by default `name`. Raises UsageError if the commit does not exist, if
    the systems are in several repositories, or if an accepted commit does not lie between the baseline and the
    candidate in the history.
    """
    add_working_directory()
    homes = {system: _home(system) for system in systems}
    repositories = {Repository.around(home): system for system, home in homes.items()}
    if len(repositories) > 1:
        systems_and_repositories = ", ".join(
            f"{system} in {repository.root}" for repository, system in repositories.items()
        )
        raise UsageError("--baseline needs all systems in the same repository", got=systems_and_repositories)
    [repository] = repositories
    for system, home in homes.items():
        if installed(home, repository.root) or repository.ignores(home):
            raise UsageError(RULE, where=system, got=f"a module in {home}, which belongs to no commit", remedy=_IN_TREE)
    baseline = repository.facts(repository.commit(name)).model_copy(update={"named": named or name})
    candidate = repository.facts(repository.commit("HEAD")).model_copy(
        update={"changes": repository.changes(reports.resolve())}
    )
    today = day or datetime.now(tz=UTC).date()
    records = [_recorded(entry, repository, baseline, candidate, today) for entry in accepted]
    commits = TwoCommits(candidate=candidate, baseline=baseline, accepted=records)
    folder = Path(tempfile.mkdtemp(prefix="harness-baseline-")).resolve()
    trees = {
        commit: folder / f"tree-{commit[:SHORT]}"
        for commit in (baseline.commit, *(facts.commit for facts in commits.in_force().values()))
    }
    exchange, import_paths = folder / "exchange", {}
    try:
        exchange.mkdir()
        for commit, tree in trees.items():
            try:
                repository.check_out(commit, tree)
                if commit == baseline.commit:
                    baseline = baseline.model_copy(update={"lacks": repository.lacks(tree)})
            except GitFailed as error:
                systems_and_repositories = f"git cannot check out {commit}: {error}"
                raise UsageError(RULE, where=str(repository.root), got=systems_and_repositories) from error
            import_paths[commit] = rebased(commit, repository.root, tree, homes.values())
        yield Checkout(commits.model_copy(update={"baseline": baseline}), import_paths, exchange)
    finally:
        for tree in trees.values():
            _remove(repository, tree)
        shutil.rmtree(folder, ignore_errors=True)


def _recorded(
    entry: AcceptedBaseline, repository: Repository, baseline: CommitFacts, candidate: CommitFacts, day: date
) -> AcceptedRecord:
    """Return an accepted baseline for the run's header, with its state (such as expired) on `day`.

    For an entry that has not expired, raises UsageError if its commit is unknown, or if this commit is neither in the
    baseline's history nor between the baseline and the candidate's HEAD.
    """
    commit, short = entry.commit, entry.commit[:SHORT]
    known = repository.has(commit)
    state: Literal["in_force", "expired", "contained"] = "in_force"
    problem = ""
    if entry.expired(day):
        state = "expired"
    elif not known:
        problem = f"no commit {short} in {repository.root}"
    elif repository.contains(baseline.commit, commit):
        state = "contained"
    elif not repository.contains(commit, baseline.commit):
        problem = f"{short}, which does not contain the baseline {baseline.commit[:SHORT]}"
    elif not repository.contains(candidate.commit, commit):
        problem = f"{short}, which HEAD ({candidate.commit[:SHORT]}) does not contain"
    if problem:
        must_be_between_baseline_and_head = "an accepted baseline must be a commit between --baseline and HEAD"
        or_change_the_entry = (
            "after a merge, squash or rebase, accept the commit that now has the change, or remove the entry"
        )
        raise UsageError(
            must_be_between_baseline_and_head,
            where=entry.where,
            got=problem,
            remedy=f"fetch the whole history; {or_change_the_entry}",
        )
    return AcceptedRecord(
        contract=entry.contract,
        claim=entry.claim,
        commit=repository.facts(commit) if known else CommitFacts(commit=commit, subject=""),
        reviewer=entry.reviewer,
        reason=entry.reason,
        expires=str(entry.expires),
        state=state,
    )


def _remove(repository: Repository, tree: Path) -> None:
    """Remove the worktree and git's record of it, even if the checkout was incomplete."""
    try:
        repository.remove(tree)
    except GitFailed:  # The worktree is incomplete. git can remove its record after the folder is gone.
        shutil.rmtree(tree, ignore_errors=True)
        with suppress(GitFailed):
            repository.remove(tree)


_IN_TREE = "put the system into the repository, or install the repository in editable mode"


def _home(system: str) -> Path:
    """Return the folder on the import path that contains the system's package. Raises UsageError if none does."""
    package = system.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    places = [] if spec is None else list(spec.submodule_search_locations or []) or [spec.origin or ""]
    if not places or not Path(places[0]).exists():
        where_to_put_package = (
            f"run from the folder that holds `{package}`, install it, or put its folder on PYTHONPATH"
        )
        raise UsageError(
            RULE, where=system, got=f"no module `{package}` that Python can import", remedy=where_to_put_package
        )
    return Path(places[0]).resolve().parent
