"""Check out the baseline's commit in a private worktree of a user's repository, and import its modules from there.

Only modules of the repository come from the worktree; the harness and installed packages stay the same. Folders
that the commit lacks are not on the import path, so that a process never mixes modules of two commits.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import SystemResolutionError, UsageError
from harness.evidence.environment_records import CommitFacts, TwoCommits
from harness.evidence.sources import INSTALLED, OF_A_CALL, is_recorded, recorded_in
from harness.platform.paths import add_working_directory

_in_use: list[ImportPath] = []


@dataclass(frozen=True)
class ImportPath:
    """The import path and the working directory of a process that trains with the code of a commit.

    It is not a pydantic model, because processes that describe systems use it and should not import pydantic.

    root: the repository's working tree; tree: the worktree, from which all modules of the repository must come.
    """

    commit: str
    root: str
    tree: str
    folder: str
    path: list[str]

    def use(self) -> None:
        """Set import path and working directory of this process, and of the processes that it starts."""
        sys.path[:] = self.path
        os.environ["PYTHONPATH"] = os.pathsep.join(self.path)
        os.chdir(self.folder)
        _in_use[:] = [self]

    def require(self, system: str) -> None:
        """Raise SystemResolutionError if the system's module, or another of the repository, is not in the worktree."""
        module = sys.modules[system.partition(":")[0]]
        file = _file(module)
        if not _within(file, self.tree):
            raise self._error(system, self._named(module.__name__, file))
        if found := next(self._strays(), None):
            raise self._error(system, self._named(*found))

    def _named(self, name: str, file: str) -> str:
        whose = " of the working tree" if _within(file, self.root) else ""
        return f"`{name}`{whose} ({file or 'no file'})"

    def _strays(self) -> Iterator[tuple[str, str]]:
        """Yield name and file of each module of the repository that does not come from the worktree."""
        for name, module in list(sys.modules.items()):
            file = _file(module)
            if name.partition(".")[0] == "harness" or not _within(file, self.root) or _within(file, self.tree):
                continue
            if not installed(Path(file), Path(self.root)):
                yield name, file

    def _error(self, system: str, got: str) -> SystemResolutionError:
        return SystemResolutionError(
            f"under --baseline a system and what it imports of its repository come from {self.commit[:12]}",
            where=system,
            got=got,
            remedy="import it by its name, not by a path or an import hook that names the working tree",
        )


def in_use() -> ImportPath | None:
    """Return the import path that this process uses; None if it uses the code of the working tree."""
    return _in_use[0] if _in_use else None


def rebased(commit: str, root: Path, tree: Path, homes: Iterable[Path]) -> ImportPath:
    """Return this process's import path and working directory, with `root` replaced by the worktree `tree`.

    homes: folders of the repository that contain the systems' packages. They come first, because the
    folder of an editable installation may be missing in the import path.
    """
    here = Path.cwd()
    entries = [Path(entry or here) for entry in sys.path]
    moved = [place for entry in (*homes, *entries) if (place := _moved(entry, root, tree)) is not None]
    folder = _moved(here, root, tree) if _within(str(here), str(root)) else here
    return ImportPath(
        commit=commit,
        root=str(root),
        tree=str(tree),
        folder=str(folder or tree),
        path=list(dict.fromkeys(str(place) for place in moved)),
    )


def _moved(entry: Path, root: Path, tree: Path) -> Path | None:
    """Return the path entry moved to the worktree; None if the commit lacks it and it has no installed package."""
    place = entry.resolve()
    if not place.is_relative_to(root) or installed(place, root):
        return entry
    there = tree / place.relative_to(root)
    if there.exists():
        return there
    return entry if recorded_in(place) else None


def installed(place: Path, root: Path) -> bool:
    """Return True if a path below `root` belongs to an installed package (an environment inside the repository)."""
    prefixes = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix) if _within(prefix, str(root))]
    by_name = any(part in INSTALLED for part in place.relative_to(root).parts)
    return by_name or is_recorded(place) or any(place.is_relative_to(prefix) for prefix in prefixes)


def _file(module: object) -> str:
    """Return the real path of a module's file; "" if it has no absolute file name (such as `torch.ops`)."""
    file = getattr(module, "__file__", None)
    return os.path.realpath(file) if isinstance(file, str) and os.path.isabs(file) else ""  # noqa: PTH117


def _within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder.rstrip(os.sep)}{os.sep}")


RULE = "--baseline takes a commit of the repository in which the system lies"
_POINTER = b"version https://git-lfs.github.com/spec/"
_SUBMODULE = "160000"  # mode of an entry that is another repository's commit
MOST_NAMED = 5


class GitFailed(Exception):  # noqa: N818 - it is caught, and reported in the terms of the request
    """git exited with an error; the text is the last line that it printed."""


@dataclass(frozen=True)
class Repository:
    """A git repository, by its working tree. Methods raise GitFailed if git fails."""

    root: Path

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """Return the repository around a folder. Raises UsageError if git is missing, or finds no repository."""
        try:
            answer = _git(folder, "rev-parse", "--show-toplevel")
        except FileNotFoundError as error:
            remedy = "install git, or run without --baseline"
            raise UsageError(RULE, got="no program `git` on this machine", remedy=remedy) from error
        except GitFailed as error:
            raise UsageError(RULE, where=str(folder), got=str(error)) from error
        return cls(Path(answer).resolve())

    def commit(self, name: str) -> str:
        """Return the commit of a branch, tag or other revision. Raises UsageError if the revision is unknown."""
        try:
            return _git(self.root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except GitFailed as error:
            remedy = f"fetch it first (`git fetch origin {name}`; in CI, check out with the whole history)"
            raise UsageError(RULE, where=str(self.root), got=f"no commit `{name}`", remedy=remedy) from error

    def facts(self, commit: str) -> CommitFacts:
        """Return the commit together with its subject."""
        return CommitFacts(commit=commit, subject=_git(self.root, "log", "-1", "--format=%s", commit))

    def changes(self, but: Path) -> int:
        """Count the files that differ from HEAD, with new files but without ignored files and the folder `but`."""
        status = ["status", "--porcelain", "--untracked-files=all"]
        if but.is_relative_to(self.root) and but != self.root:
            status += ["--", ".", f":(exclude,literal){but.relative_to(self.root)}"]
        return len(_git(self.root, *status).splitlines())

    def ignores(self, path: Path) -> bool:
        """Return True if the repository ignores this path, such as a file of an installed package."""
        try:
            _git(self.root, "check-ignore", "--quiet", str(path))
        except GitFailed:
            return False
        return True

    def check_out(self, commit: str, folder: Path) -> None:
        """Put the commit's files into a new worktree."""
        _git(self.root, "worktree", "add", "--detach", "--quiet", str(folder), commit)

    def remove(self, folder: Path) -> None:
        """Remove a worktree, even one that has changes or is locked."""
        _git(self.root, "worktree", "remove", "--force", "--force", str(folder))

    def lacks(self, folder: Path) -> list[str]:
        """Describe what a new worktree lacks: submodules, and contents of files in Git LFS."""
        entries = [entry.split("\t", 1) for entry in _names(_git(folder, "ls-tree", "-r", "-z", "HEAD"))]
        submodules = [name for mode, name in entries if mode.startswith(_SUBMODULE)]
        attributed = _names(_git(folder, "ls-files", "-z", "--", ":(attr:filter=lfs)"))
        pointers = [name for name in attributed if _is_pointer(folder / name)]
        kinds = (("submodule", "submodules", submodules), ("file of Git LFS", "files of Git LFS", pointers))
        return [f"without {_counted(one, many, names)}" for one, many, names in kinds if names]


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
        start_new_session=True,  # only the command gets a terminal's SIGINT, and cleans up
    )
    if done.returncode != 0:
        raise GitFailed(_reason(done.stderr) or f"git {arguments[0]} exited with {done.returncode}")
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def _reason(stderr: bytes) -> str:
    """Return git's `fatal:` line, else its last line. Lines after `fatal:` are only advice."""
    printed = stderr.decode("utf-8", "replace").strip().splitlines()
    fatal = [line for line in printed if line.startswith("fatal:")]
    return [*fatal[:1], *printed[-1:], ""][0]


@dataclass(frozen=True)
class Checkout:
    """Two commits, the import path of the baseline, and a folder for exchanging tensors between their processes."""

    commits: TwoCommits
    import_path: ImportPath
    exchange: Path

    @property
    def commit(self) -> str:
        """Return the commit of the baseline."""
        return self.commits.baseline.commit

    def trained(self, commits: Collection[str | None]) -> list[str]:
        """Return HEAD of each tree that has the code of one of `commits`; None means the candidate's working tree."""
        trees = [self.import_path.root] if None in commits else []
        trees += [self.import_path.tree] if set(commits) - {None} else []
        return [Repository(Path(tree)).commit("HEAD") for tree in trees]


@contextmanager
def checked_out(name: str, systems: Sequence[str], reports: Path, *, named: str = "") -> Iterator[Checkout]:
    """Check out the commit `name` in a worktree of the systems' repository, for the duration of the block.

    The worktree is removed at the end, also after an error. reports: files in this folder do not count as changes.
    named: the name by which the user requested the commit, by default `name`.
    Raises UsageError if there is no such commit, or if a system is not part of one common repository.
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
    """Remove the worktree and git's record of it, even if the checkout was incomplete."""
    try:
        repository.remove(tree)
    except GitFailed:  # incomplete; git can remove its record once the folder is gone
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
