"""Find the files of a run, and check that a command does not write into an existing run.

A run is a folder, an archive of this folder, or a published folder, which has an archive next to the report's files:

report.html  summary.md  verdicts.json  (drill.json)  run.tar.xz  manifest.json

The archive contains the recorded files (`run.json`, `contracts/`, `waivers/`, `evidence/`) with their own manifest. The
files next to the archive are computed from the recorded files. If a command cannot write to a path, it ends with a
UsageError.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.files import write_text
from harness.evidence.layout import shown
from harness.platform.paths import require_existing
from harness.run_directory.archive import SUFFIXES, is_archive, unpack

_RUN = (layout.HEADER, layout.ARCHIVE)  # A run has at least one file of `_RUN` and at least one file of `_ITS_OWN`.
_ITS_OWN = (layout.MANIFEST, layout.INCOMPLETE, layout.VERDICTS)


def refuse_within_run(path: Path, runs: Sequence[Path] = ()) -> None:
    """Raise UsageError if the path is inside a run directory, a published run, or one of `runs`.

    A manifest lists all files of a run, so an additional file would break the seal.
    """
    within = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent)) / path.name
    named = {Path(os.path.realpath(run)) for run in runs}
    for folder in (above for place in within for above in place.parents):
        is_run = any(_is_file(folder / name) for name in _RUN) and any(_is_file(folder / name) for name in _ITS_OWN)
        if folder in named or is_run:
            raise UsageError(
                "nothing may be written into an existing run, because its recorded files must not change",
                where=str(path),
                got=f"a path inside the run {folder}",
                remedy="name a path outside the run directory",
            )


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - `Path.is_file` raises if a folder above cannot be read


def way(folder: Path, page: Path) -> str:
    """Return the relative link from a page in `folder` to `page`. Symbolic links in both paths are resolved."""
    return quote(Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix())


def made_folder(folder: Path) -> Path:
    """Create the folder and its parents, and return it.

    Raises UsageError if this fails, or if it would be inside a run.
    """
    refuse_within_run(folder / "any")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise takes_nothing(folder, error) from error
    return folder


def temporary_folder(final: Path, behind: str = "") -> Path:
    """Create a folder next to `final` that only this user can access. The caller later renames it to `final`.

    The parent of `final` is created, too. The new folder's name is the name of `final`, then `behind`, then random
    characters. Without `behind` the name starts with a dot. The returned path begins with `final.parent` exactly as
    the caller wrote it, so that it equals a path from a glob in `final.parent`. The path that `mkdtemp` returns is not
    used: since Python 3.12 it is absolute and without `..`, and can be another folder if `..` follows a link. Raises
    UsageError if the folder cannot be created, if it would be inside a run, or if the umask would prevent this user
    from reading the files.
    """
    _require_readable(final)
    folder = made_folder(final.parent)
    prefix = f"{final.name}{behind}" if behind else f".{final.name}."
    try:
        return folder / Path(tempfile.mkdtemp(prefix=prefix, dir=folder)).name
    except OSError as error:
        raise takes_nothing(final, error) from error


def _require_readable(final: Path) -> None:
    umask = os.umask(0o077)  # the umask can be read only by setting it
    os.umask(umask)
    if umask & stat.S_IRWXU:
        raise UsageError(
            "the user who writes a run must be able to read it",
            where=str(final),
            got=f"a umask of {umask:03o}, which denies the owner access",
            remedy="run `umask 022` and then the command again",
        )


def takes_nothing(path: Path, error: OSError) -> UsageError:
    """Return the error for a path to which a command cannot write."""
    rule, got = "the named path must be writable", error.strerror or str(error)
    return UsageError(rule, where=str(path), got=got, remedy="name another path")


def write_named(path: Path, text: str) -> None:
    """Write a file completely or not at all. Create its folder if necessary.

    Raises UsageError if this fails, or if the file would be inside a run.
    """
    refuse_within_run(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise takes_nothing(path, error) from error


def write_together(texts: Mapping[Path, str]) -> None:
    """Write all files or none. Create their folders if necessary, and replace existing files.

    Raises UsageError if a file cannot be written. Then no file or folder is added, and existing files are unchanged.
    """
    for path in texts:
        refuse_within_run(path)
    writing = _Together()
    try:
        for path, text in texts.items():
            writing.put_beside(path, text)
        writing.put_in_place()
    except BaseException as error:
        writing.undo()
        if isinstance(error, OSError):
            raise takes_nothing(writing.path, error) from error
        raise


class _Together:
    """Files that are written under temporary names and then renamed together. path: the file that is written now, for
    error messages."""

    def __init__(self) -> None:
        self.path = Path()
        self._folders: list[Path] = []  # folders that were created
        self._beside: dict[Path, Path] = {}  # final path -> temporary file in the same folder
        # path of a replaced file -> content before it was replaced; None: the file did not exist
        self._before: dict[Path, bytes | None] = {}

    def put_beside(self, path: Path, text: str) -> None:
        self.path = path
        for folder in [above for above in reversed(path.parents) if not os.path.lexists(above)]:
            folder.mkdir()
            self._folders.append(folder)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        with beside.open("xb") as file:
            self._beside[path] = beside
            file.write(text.encode("utf-8"))

    def put_in_place(self) -> None:
        for path in self._beside:
            self.path = path
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        for path, beside in self._beside.items():
            self.path = path
            before = path.read_bytes() if path.is_file() else None
            beside.replace(path)
            self._before[path] = before

    def undo(self) -> None:
        for path, before in self._before.items():
            if before is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(before)
        for beside in self._beside.values():
            beside.unlink(missing_ok=True)
        for folder in reversed(self._folders):
            folder.rmdir()


_RULE = "evidence can be read only from a run directory or from an archive of a run directory"


@dataclass(frozen=True)
class Place:
    """The folders that contain the parts of a run. temporary: for an archive, the folder in which it was unpacked."""

    named: Path  # the path that the caller gave; messages and pages show it
    root: Path  # contains `run.json`, `contracts/`, `waivers/` and `evidence/`
    derived: Path  # contains `verdicts.json`, `drill.json`, the pages, and the manifest of the run
    temporary: Path | None = None

    @property
    def published(self) -> bool:
        """Return True if the run is a published folder, whose evidence is in an archive."""
        return self.derived == self.named and self.temporary is not None

    def shown(self, text: str) -> str:
        """Return a text for the user, with the name of the folder of unpacked files replaced by the path that the
        caller gave."""
        return text.replace(str(self.root), str(self.named))

    def writable(self) -> Path:
        """Return the folder in which verdicts and pages can be replaced.

        Raises UsageError if the caller named an archive.
        """
        if self.derived != self.named:
            raise UsageError(
                "verdicts and pages can be written only into a folder, not into an archive",
                where=str(self.named),
                got="an archive",
                remedy="unpack the archive and name the folder",
            )
        return self.derived


def place_of(path: Path) -> Place:
    """Return the place of the run at `path`. If the run is in an archive, unpack it into a temporary folder.

    Raises UsageError if the path does not exist. Raises EvidenceError if the path is not a run, or if the run contains
    something that is not allowed.
    """
    archive = path / layout.ARCHIVE
    if path.is_dir() and not (archive.exists() or archive.is_symlink()):
        return Place(path, path, path)
    if path.is_dir():
        _refuse_ambiguous(path)
        return _unpacked(path, archive, derived=path)
    require_existing([path])
    if not is_archive(path):
        raise EvidenceError(
            _RULE, where=str(path), got="a file", remedy=f"name a folder, or a file that ends in {', '.join(SUFFIXES)}"
        )
    return _unpacked(path, path, derived=None)


def runs_in(folder: Path) -> list[Path]:
    """Return the runs directly in a folder, sorted by path: run directories, published folders and archives."""
    found = [path.parent for name in (layout.HEADER, layout.ARCHIVE) for path in folder.glob(f"*/{name}")]
    archives = [path for path in folder.glob("*") if path.is_file() and is_archive(path)]
    return sorted({*found, *archives})


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in a folder at any depth, sorted by path. The folder of a run is not searched for other runs."""
    found = runs_in(folder)
    for inside in sorted(folder.iterdir()):
        if inside.is_dir() and not inside.is_symlink() and inside not in found:
            found += runs_below(inside)
    return sorted(found)


def recorded_before(folder: Path) -> list[Path]:
    """Return the runs below a folder, sorted by name, newest first.

    The list is empty for a missing or unreadable folder.
    """
    try:
        found = runs_below(folder) if folder.is_dir() else []
    except OSError:
        return []
    return sorted(found, key=lambda run: run.name, reverse=True)


def _refuse_ambiguous(path: Path) -> None:
    other_evidence = [name for name in layout.SEEN if os.path.lexists(path / name)]
    if other_evidence or (path / layout.ARCHIVE).is_symlink():
        ambiguous = f"{other_evidence[0]} next to it" if other_evidence else "a link"
        raise EvidenceError(
            f"a published run must have its evidence only in {layout.ARCHIVE}",
            where=str(path),
            got=ambiguous,
            remedy=f"remove the evidence at one of the two places, or name {path / layout.ARCHIVE}",
        )


def _unpacked(named: Path, archive: Path, derived: Path | None) -> Place:
    temporary = Path(tempfile.mkdtemp(prefix="harness-run-"))
    try:
        unpack(archive, temporary)
        root = _root(temporary, archive)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Place(named, root, derived or root, temporary)


def _root(folder: Path, archive: Path) -> Path:
    """Return the run directory in the folder of unpacked files: this folder itself, or the only folder in it."""
    inside = sorted(folder.iterdir())
    runs = [path for path in inside if path.is_dir() and (path / layout.HEADER).exists()]
    if (folder / layout.HEADER).exists() or not runs:
        return folder
    if len(inside) > 1:
        other = next(path.name for path in inside if path != runs[0])
        raise EvidenceError(
            "an archive of a run must contain nothing except this run",
            where=str(archive),
            got=f"{shown(other)} next to {shown(runs[0].name)}",
        )
    return runs[0]
