"""Define `manifest.json`, which lists every other file of a folder with size and digest and, written last, seals it.

One folder has one manifest, at its top. In a published folder it lists the pages and the archive, and a manifest in the
archive lists what was seen. `seen` is the same in both, however often the verdicts are judged again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import SIZE_LIMIT, Damaged, parse, read_bytes
from harness.evidence.layout import shown, unfit
from harness.numbers import dump_json
from harness.run_directory.archive import LIMITS, TOP

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # SHA-256
_MOST_BYTES = 64 * 2**20


class ListedFile(Record):
    """A plain file, by its path from the folder that the manifest lies in."""

    path: str
    size: Annotated[int, Field(ge=0, strict=True)]  # bytes
    sha256: Digest


class Manifest(Record):
    """The whole file. `replaces`: the digest of the manifest that this one took the place of."""

    format_version: Literal[1] = 1
    files: list[ListedFile]
    folders: list[str]
    seen: Digest  # over header, contracts, waivers and evidence: `seen_digest`
    replaces: Digest | None = None

    @model_validator(mode="after")
    def _of_this_folder(self) -> Self:
        """Refuse names that repeat, are out of order or outside the folder, or that a manifest cannot list."""
        files = [file.path for file in self.files]
        for names in (files, self.folders):
            if any(first >= second for first, second in pairwise(names)):
                raise ValueError("its names stand in their order, each once")
        for name in [*files, *self.folders]:
            if (problem := unfit(name)) or str(PurePosixPath(name)) != name or name == ".":
                raise ValueError(f"it lists {shown(name)}: {problem or 'a path that is not spelled out'}")
        if both := set(files) & set(self.folders):
            raise ValueError(f"it lists {shown(min(both))} as a file and as a folder")
        if outside := {layout.MANIFEST, layout.INCOMPLETE} & {*files, *self.folders}:
            raise ValueError(f"it lists {min(outside)}")
        return self

    def by_path(self) -> dict[str, ListedFile]:
        return {file.path: file for file in self.files}


class _Written(Manifest):
    """The file as it is written. `checksum`: SHA-256 of all else in it: damage differs from a changed file."""

    checksum: Digest


def manifest_text(manifest: Manifest) -> str:
    """Return the file's text; equal folders give equal bytes."""
    content = manifest.model_dump(mode="json")
    return dump_json({**content, "checksum": digest_of(dump_json(content))}, indent=1) + "\n"


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, which identifies a manifest."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Return the manifest of a folder, and its digest. Raises `Damaged`.

    It has to be written as the harness writes it, so that nothing in it is overlooked (such as a repeated key).
    """
    path = folder / layout.MANIFEST
    data = read_bytes(path, _MOST_BYTES)
    if path.stat().st_nlink > 1:
        raise Damaged(f"{layout.MANIFEST} is a hard link")
    manifest = Manifest(**parse(data, _Written, layout.MANIFEST).model_dump(exclude={"checksum"}))
    text = manifest_text(manifest)
    if text.encode() != data:
        raise Damaged(f"{layout.MANIFEST} was changed, or is not written as the harness writes it")
    return manifest, digest_of(text)


def listed_file(root: Path, name: str) -> ListedFile:
    """Return the entry of a file as it is now. Raises OSError."""
    with (root / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return ListedFile(path=name, size=file.tell(), sha256=digest)


def is_seen(name: str) -> bool:
    """Return True if a path belongs to what existed before anything was judged."""
    return name.partition("/")[0] in layout.SEEN


def seen_digest(files: list[ListedFile], folders: list[str]) -> str:
    """Return the SHA-256 over header, contracts, waivers and evidence: a line for each file, then for each folder."""
    lines = [f"{file.sha256} {file.size} {file.path}" for file in files if is_seen(file.path)]
    lines += [f"{name}/" for name in folders if is_seen(name)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# List what lies in a folder, following and trusting nothing: plain files, folders, and what is
# neither.

MOST = 100_000  # files and folders: a listing of an untrusted directory comes to an end
_LONGEST, _DEEPEST = LIMITS.name - len(TOP) - 1, LIMITS.depth - 1  # what fits into an archive, below its one folder


@dataclass
class Listing:
    """All that lies in a folder, by its path from there. `files`: plain ones, with their size in bytes; `unfit`: what
    no run directory holds (links, devices, names that not every system can write), and why.
    """

    files: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    unfit: dict[str, str] = field(default_factory=dict)


def listing(root: Path, leave_out: Collection[str] = ()) -> Listing:
    """Return what lies in `root`, without the names `leave_out` at its top."""
    found = Listing()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if name not in leave_out and _add(found, name, entry):
                        waiting.append(name)
        except OSError as error:
            found.unfit[folder or "."] = f"cannot be read: {error.strerror}"
        if len(found.files) + len(found.folders) + len(found.unfit) > MOST:
            found.unfit["."] = f"holds more than {MOST} files and folders"
            break
    return found


def _add(found: Listing, name: str, entry: os.DirEntry[str]) -> bool:
    """Add the entry to its list; return True if it is a folder to look into."""
    status = entry.stat(follow_symlinks=False)
    problem = unfit(name) or _too_long(name) or _kind(status)
    if problem is not None:
        found.unfit[name] = problem
    elif stat.S_ISDIR(status.st_mode):
        found.folders.add(name)
        return True
    else:
        found.files[name] = status.st_size
    return False


def _too_long(name: str) -> str | None:
    too_long = len(name.encode()) > _LONGEST or name.count("/") >= _DEEPEST
    return f"a path of more than {_LONGEST} bytes or {_DEEPEST} names" if too_long else None


def _kind(status: os.stat_result) -> str | None:
    """Return why it is not a plain file or a folder of its own; None where it is one."""
    if stat.S_ISDIR(status.st_mode):
        return None
    problems = {
        "a symbolic link": stat.S_ISLNK(status.st_mode),
        "a pipe, a socket or a device": not stat.S_ISREG(status.st_mode),
        "a hard link: the same file has another name": status.st_nlink > 1,
        "its owner may not read it": not status.st_mode & stat.S_IRUSR,
        f"{status.st_size} bytes, more than {SIZE_LIMIT}": status.st_size > SIZE_LIMIT,
    }
    return next((problem for problem, found in problems.items() if found), None)
