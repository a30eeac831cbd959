"""Files that a command writes where its user says."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from harness.evidence.files import write_text
from harness.output_paths import refuse_within_run, takes_nothing


def write_named(path: Path, text: str) -> None:
    """Write a file, whole or not at all, in a folder that is made.

    Raises UsageError where that cannot be, and where it would lie in a run.
    """
    refuse_within_run(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise takes_nothing(path, error) from error


def write_together(texts: Mapping[Path, str]) -> None:
    """Write files, all of them or none, in folders that are made; those that are there are replaced.

    Raises UsageError where one cannot be written: then there is no file and no folder that was not there before, and
    those that were are as they were.
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
    """Files on their way, each beside its place until all of them are written. `path`: of which one it is now."""

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
