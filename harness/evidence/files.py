"""Read and write single files of a run directory. Reading a damaged file raises `Damaged` with a message of one short
line, and no other exception. A file is written completely or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress

# These functions are imported before user code, which could replace them in their modules.
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, get_args
from unicodedata import normalize

from pydantic import BaseModel, ValidationError

from harness.evidence.base import Record
from harness.numbers import Count

# The functions below prepare the paths of the harness's files and folders in a run directory. User code may have
# created something else at such a path. What exists there is removed, but never opened, because opening could block on
# a pipe or follow a link.


def kind(path: Path) -> str:
    """Return in words what exists at the path, such as "a file" or "nothing". Links are not followed."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # this error also occurs if a parent of the path is no longer a folder
        return "nothing"
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFLNK: "a link"}
    return kinds.get(stat.S_IFMT(mode), "something else")


def remove(path: Path) -> None:
    """Remove what exists at the path: a file, a link, or a folder with its content."""
    found = kind(path)
    if found == "a folder":
        shutil.rmtree(path)
    elif found != "nothing":
        path.unlink()


def make_way(path: Path) -> None:
    """Remove anything at the path except a plain file, so that a plain file can be written there."""
    if kind(path) != "a file":
        remove(path)


def own_folder(path: Path) -> None:
    """Create a folder at `path` if there is none. Anything else at the path is removed first."""
    if kind(path) != "a folder":
        remove(path)
        path.mkdir(parents=True)


def empty_folder(path: Path) -> None:
    """Create an empty folder at the path. Whatever exists there is removed first, and so is each parent that is not a
    folder."""
    remove(path)
    for parent in path.parents:
        if kind(parent) != "nothing" and not parent.is_dir():
            parent.unlink()
    path.mkdir(parents=True)


SIZE_LIMIT = 512 * 2**20  # largest size of one file in bytes; a series of a million steps takes about 60 MB
Model = TypeVar("Model", bound=BaseModel)


class Damaged(Exception):  # noqa: N818 - describes a file; callers turn it into a Death or an EvidenceError
    """A file of a run directory does not have the content that it should have."""


class RepeatedKey(ValueError):  # noqa: N818 - describes a file
    """The same key occurs twice in an object of a JSON file, so that readers could use different values."""

    def __str__(self) -> str:
        return "a key occurs twice in one object"


def read_bytes(path: Path, limit: int = SIZE_LIMIT) -> bytes:
    """Return the file's bytes. Raise `Damaged` if it cannot be read, is not a plain file, or exceeds the limit."""
    try:
        if not path.is_file() or path.is_symlink():
            raise Damaged(f"{path.name} is not a plain file")
        size = path.stat().st_size
        if size > limit:
            raise Damaged(f"{path.name} has {size} bytes, but at most {limit} are allowed")
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error


def read_model(path: Path, model: type[Model], limit: int = 64 * 2**20) -> Model:
    """Return a JSON file as a model. Raise `Damaged` if the file cannot be read or does not fit the model."""
    return parse(read_bytes(path, limit), model, path.name)


def readable(path: Path, model: type[Model]) -> Model | None:
    """Return a JSON file as a model. Return None if the file is missing or damaged, or was written by a newer, unknown
    version."""
    with suppress(Damaged):
        return read_model(path, model)
    return None


def parse(text: bytes, model: type[Model], name: str) -> Model:
    """Return JSON text as a model. Raises `Damaged` with the place of the first error, or with the file's version if
    this version is unknown."""
    try:
        require_keys_once(text)
        return model.model_validate_json(text, strict=True)
    except (ValidationError, RecursionError, ValueError) as error:
        raise Damaged(_unknown_version(error, model, name) or f"{name}: {first_error(error)}") from error


def require_keys_once(text: str | bytes) -> None:
    """Raise ValueError if an object in the JSON text has the same key twice, because readers could then use different
    values. Two keys that differ only in their Unicode form count as the same key."""
    raw = text.encode() if isinstance(text, str) else text
    # If every character is ASCII, a key has only one Unicode form, so a quicker check is enough.
    one_form = raw.isascii() and b"\\u" not in raw
    json.loads(text, object_pairs_hook=_once if one_form else _once_in_any_form)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise RepeatedKey
    return found


def _once_in_any_form(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return _once([(normalize("NFC", key), value) for key, value in pairs])


def _unknown_version(error: Exception, model: type[BaseModel], name: str) -> str | None:
    """Return a message if the version of the file is unknown, because this explains all other errors in it. Otherwise
    return None."""
    if not isinstance(error, ValidationError) or "format_version" not in model.model_fields:
        return None
    seen: list[Any] = [one["input"] for one in error.errors(include_url=False) if one["loc"] == ("format_version",)]
    if not seen:
        return None
    newest = max(get_args(model.model_fields["format_version"].annotation))
    known = f"1 to {newest}" if newest > 1 else "1"  # older versions always stay readable
    return (
        f"{name} has format version {str(seen[0])[:40]}, but this harness reads {known}: use the harness version "
        "that wrote the file"
    )


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all, so that nobody reads half of it. A link or pipe at the path is not opened.
    A half-written file remains only if the process is killed. `half_written` finds such files by their names."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    remove(temporary)
    try:
        with temporary.open("xb") as file:
            file.write(text.encode("utf-8"))
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the first error is raised again, and an error of the cleanup is ignored
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the error of a full disk does not name a file
        raise


def half_written(folder: Path, names: str) -> Iterator[Path]:
    """Yield the half-written files that killed processes left in a folder. names: a pattern for the names of the
    complete files."""
    for path in folder.glob(f".{names}.*"):
        if path.name.rpartition(".")[2].isdecimal():
            yield path


def first_error(error: Exception) -> str:
    """Return the first error of a failed validation as one short line."""
    if not isinstance(error, ValidationError):
        return str(error) if isinstance(error, RepeatedKey) else type(error).__name__
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}"[:300] if place else first["msg"][:300]


class Segment(Record):
    """A part of a file in the run's directory: consecutive bytes that one process wrote."""

    name: str
    start: Count
    length: Count
    sha256: str


class Written(Record):
    """All files that a worker wrote. A file has several segments if another process wrote to it in between."""

    segments: list[Segment]

    def changed(self, directory: Path) -> str | None:
        """Return the name of the first file whose content is not what the worker wrote. Return None if no file was
        changed."""
        ends = {each.name: each.start + each.length for each in self.segments}
        for each in self.segments:
            try:
                with (directory / each.name).open("rb") as file:
                    file.seek(each.start)
                    same = sha256(file.read(each.length)).hexdigest() == each.sha256
                    size = file.seek(0, os.SEEK_END)
            except OSError:
                return each.name
            if not same or size != ends[each.name]:
                return each.name
        return None


class DigestedFile:
    """A file to which this process appends, and the digests of its text. Each write is flushed at once."""

    def __init__(self, path: Path, mode: str) -> None:
        self._name, self._file = path.name, path.open(mode)
        self._segments: list[Segment] = []
        self._begin()

    def _begin(self) -> None:
        self._start = self._end = os.fstat(self._file.fileno()).st_size
        self._digest = sha256()

    def write(self, text: str) -> None:
        # If the file is longer than the text that this object wrote, another process has written to it.
        if os.fstat(self._file.fileno()).st_size != self._end:
            self._segments = self.segments()
            self._begin()
        written = text.encode("utf-8")
        self._file.write(written)
        self._file.flush()
        self._end += len(written)
        self._digest.update(written)

    def restart(self) -> None:
        """Empty the file, and forget the digests of the text that was written before."""
        self._file.seek(0)
        self._file.truncate()
        self._segments = []
        self._begin()

    def segments(self) -> list[Segment]:
        """Return the parts of the file that this process has written so far, with their digests."""
        length = self._end - self._start
        last = Segment(name=self._name, start=self._start, length=length, sha256=self._digest.hexdigest())
        return [*self._segments, last]

    def close(self) -> None:
        self._file.close()
