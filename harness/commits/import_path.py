"""Compute the import path of a process that uses the modules of another commit, from a worktree of that commit.

The worktree replaces only the modules of the repository. The harness and installed packages stay the same. A folder
that does not exist in the commit is left out of the path, so that a process never mixes modules of two commits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import SystemResolutionError
from harness.evidence.modules import INSTALLED, is_recorded, recorded_in

_in_use: list[ImportPath] = []


@dataclass(frozen=True)
class ImportPath:
    """The import path and the working directory of a process that trains with the code of a commit.

    The class is not a pydantic model, because processes that only describe systems use it and should not import
    pydantic. root: the repository's working tree. tree: the worktree, from which all modules of the repository must be
    imported. folder: the working directory. path: the import path.
    """

    commit: str
    root: str
    tree: str
    folder: str
    path: list[str]

    def use(self) -> None:
        """Give this process, and the processes that it starts, this import path and this working directory."""
        sys.path[:] = self.path
        os.environ["PYTHONPATH"] = os.pathsep.join(self.path)
        os.chdir(self.folder)
        _in_use[:] = [self]

    def require(self, system: str) -> None:
        """Raise SystemResolutionError if the system's module, or any other loaded module of the repository, was not
        imported from the worktree."""
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
        """Yield name and file of each module of the repository that was not imported from the worktree."""
        for name, module in list(sys.modules.items()):
            file = _file(module)
            if name.partition(".")[0] == "harness" or not _within(file, self.root) or _within(file, self.tree):
                continue
            if not installed(Path(file), Path(self.root)):
                yield name, file

    def _error(self, system: str, got: str) -> SystemResolutionError:
        return SystemResolutionError(
            "under --baseline, a system and everything that it imports from its repository must come from "
            f"{self.commit[:12]}",
            where=system,
            got=got,
            remedy="import the module by its name, and not by a path or an import hook that leads to the working tree",
        )


def in_use() -> ImportPath | None:
    """Return the import path that this process uses, or None if it uses the code of the working tree."""
    return _in_use[0] if _in_use else None


def rebased(commit: str, root: Path, tree: Path, homes: Iterable[Path]) -> ImportPath:
    """Return this process's import path and working directory, with the worktree `tree` in place of the folder `root`.

    homes: folders of the repository that contain the systems' packages. These folders come first in the path, because
    an editable installation may make a package importable without an entry in the path.
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
    """Return the folder of the worktree `tree` that replaces an entry of the import path. Return None if the worktree
    lacks this folder.

    An entry outside of the repository `root`, or an entry with installed packages, is returned unchanged.
    """
    place = entry.resolve()
    if not place.is_relative_to(root) or installed(place, root):
        return entry
    there = tree / place.relative_to(root)
    if there.exists():
        return there
    return entry if recorded_in(place) else None


def installed(place: Path, root: Path) -> bool:
    """Return True if a path below `root` belongs to an installed package, for example in a virtual environment in the
    repository."""
    prefixes = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix) if _within(prefix, str(root))]
    by_name = any(part in INSTALLED for part in place.relative_to(root).parts)
    return by_name or is_recorded(place) or any(place.is_relative_to(prefix) for prefix in prefixes)


def _file(module: object) -> str:
    """Return the real path of a module's file, or "" if the module has no absolute file name (such as `torch.ops`)."""
    file = getattr(module, "__file__", None)
    return os.path.realpath(file) if isinstance(file, str) and os.path.isabs(file) else ""  # noqa: PTH117


def _within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder.rstrip(os.sep)}{os.sep}")
