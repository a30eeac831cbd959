"""Check where a command may write: never within an existing run. A path that cannot be written to is a mistake on the
command line.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from harness.errors import UsageError
from harness.evidence import layout
from harness.evidence.files import write_text

_RUN = (layout.HEADER, layout.ARCHIVE)  # either of them, in a folder next to one of these:
_ITS_OWN = (layout.MANIFEST, layout.INCOMPLETE, layout.VERDICTS)


def refuse_within_run(path: Path, runs: Sequence[Path] = ()) -> None:
    """Raise UsageError where a file at the path would lie in a run directory, in a published one, or in one of `runs`,
    whatever these hold.

    A manifest lists all files there: one more file, even of a command that only reads, breaks the seal.
    """
    within = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent)) / path.name
    named = {Path(os.path.realpath(run)) for run in runs}
    for folder in (above for place in within for above in place.parents):
        is_run = any(_is_file(folder / name) for name in _RUN) and any(_is_file(folder / name) for name in _ITS_OWN)
        if folder in named or is_run:
            raise UsageError(
                "nothing is written into a run that is there: it would not be as it was recorded",
                where=str(path),
                got=f"a place in {folder}",
                remedy="name a path outside of it",
            )


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - that of a Path raises where a folder above cannot be read


def way(folder: Path, page: Path) -> str:
    """Return the link from a page in `folder` to another page: by where both really lie, whatever links led to them."""
    return quote(Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix())


def made_folder(folder: Path) -> Path:
    """Make the folder with those above it, and return it. Raises UsageError where that fails, and for one in a run."""
    refuse_within_run(folder / "any")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise takes_nothing(folder, error) from error
    return folder


def temporary_folder(final: Path, behind: str = "") -> Path:
    """Make a folder for this user alone next to `final`, where `final` is written until it gets its name.

    `final`'s own folder is made, too. The name begins with `final`'s name and `behind`, if given, and
    ends at random. The path is spelled as `final` is, so that it equals what a glob in `final.parent`
    finds: since Python 3.12 `mkdtemp` returns an absolute path without `..`, and what `..` means
    behind a link is lost.

    Raises UsageError where no such name can be given there, where it would lie in a run, and where this user could not
    read what is written.
    """
    _require_readable(final)
    folder = made_folder(final.parent)
    prefix = f"{final.name}{behind}" if behind else f".{final.name}."
    try:
        return folder / Path(tempfile.mkdtemp(prefix=prefix, dir=folder)).name
    except OSError as error:
        raise takes_nothing(final, error) from error


def _require_readable(final: Path) -> None:
    umask = os.umask(0o077)  # there is no other way to read it
    os.umask(umask)
    if umask & stat.S_IRWXU:
        raise UsageError(
            "whoever writes a run can read it",
            where=str(final),
            got=f"a umask of {umask:03o}, which takes that from its owner",
            remedy="call it again after `umask 022`",
        )


def takes_nothing(path: Path, error: OSError) -> UsageError:
    """Return the error about a path that a command was to write to."""
    rule, got = "what a command writes can be written at the path that is named", error.strerror or str(error)
    return UsageError(rule, where=str(path), got=got, remedy="name another one")


def write_named(path: Path, text: str) -> None:
    """Write a file, whole or not at all, in a folder that is made for it.

    Raises UsageError where that fails, and where the file would lie in a run.
    """
    refuse_within_run(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise takes_nothing(path, error) from error


def write_together(texts: Mapping[Path, str]) -> None:
    """Write files, all of them or none, in folders that are made for them; existing files are replaced.

    Raises UsageError where one cannot be written. Then no file or folder is new, and existing ones are unchanged.
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
    """Files on their way, each next to its place until all of them are written. `path`: of which one it is now."""

    def __init__(self) -> None:
        self.path = Path()
        self._folders: list[Path] = []  # that were not there
        self._beside: dict[Path, Path] = {}
        self._before: dict[Path, bytes | None] = {}  # what was in the places that are taken; None: nothing

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
