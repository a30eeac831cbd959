"""Seal a run directory (`manifest.json`), and check the seal. The manifest lists every other file: path, size, digest.

The manifest is the last file that is written, at the top of the folder. The manifest of a published folder lists the
pages and the archive. A second manifest in the archive lists the recorded files. Both manifests contain `seen`, the
digest of the recorded files. If the run is judged again, `seen` stays the same. A run directory is complete if it has a
manifest, and if its files and folders are exactly those in the manifest.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import SIZE_LIMIT, Damaged, parse, read_bytes, write_text
from harness.evidence.layout import shown, unfit
from harness.numbers import dump_json
from harness.run_directory.archive import LIMITS, TOP
from harness.run_directory.places import Place

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # a SHA-256 digest in hex digits
_MOST_BYTES = 64 * 2**20


class ListedFile(Record):
    """A plain file with size and digest. path: relative to the folder of the manifest."""

    path: str
    size: Annotated[int, Field(ge=0, strict=True)]  # size in bytes
    sha256: Digest


class Manifest(Record):
    """The content of `manifest.json`. replaces: the digest of the earlier manifest that this manifest replaced."""

    format_version: Literal[1] = 1
    files: list[ListedFile]
    folders: list[str]
    seen: Digest  # the result of `seen_digest` for the header, contracts, waivers and evidence
    replaces: Digest | None = None

    @model_validator(mode="after")
    def _of_this_folder(self) -> Self:
        """Refuse a name that is repeated, not in sorted order, outside the folder, or not allowed in a manifest."""
        files = [file.path for file in self.files]
        for names in (files, self.folders):
            if any(first >= second for first, second in pairwise(names)):
                raise ValueError("the names that the manifest lists must be sorted, and none may occur twice")
        for name in [*files, *self.folders]:
            if (problem := unfit(name)) or str(PurePosixPath(name)) != name or name == ".":
                raise ValueError(
                    f"the manifest lists {shown(name)}: {problem or 'a path that is not in its normal form'}"
                )
        if both := set(files) & set(self.folders):
            raise ValueError(f"the manifest lists {shown(min(both))} both as a file and as a folder")
        if outside := {layout.MANIFEST, layout.INCOMPLETE} & {*files, *self.folders}:
            raise ValueError(f"the manifest lists {min(outside)}, which no manifest may list")
        return self

    def by_path(self) -> dict[str, ListedFile]:
        return {file.path: file for file in self.files}


class _Written(Manifest):
    """The text of `manifest.json`. checksum: SHA-256 of all other fields; a damaged file does not match it."""

    checksum: Digest


def manifest_text(manifest: Manifest) -> str:
    """Return the text of `manifest.json`. Equal folders give equal bytes."""
    content = manifest.model_dump(mode="json")
    return dump_json({**content, "checksum": digest_of(dump_json(content))}, indent=1) + "\n"


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal. A manifest is identified by the digest of its text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Return the manifest of a folder and the digest of its text. Raises `Damaged`.

    The file must have exactly the bytes that the harness writes. Otherwise a repeated key, for example, could hide
    content.
    """
    path = folder / layout.MANIFEST
    data = read_bytes(path, _MOST_BYTES)
    if path.stat().st_nlink > 1:
        raise Damaged(f"{layout.MANIFEST} has several hard links, but only one is allowed")
    manifest = Manifest(**parse(data, _Written, layout.MANIFEST).model_dump(exclude={"checksum"}))
    text = manifest_text(manifest)
    if text.encode() != data:
        raise Damaged(f"{layout.MANIFEST} was changed, or was not written by the harness")
    return manifest, digest_of(text)


def listed_file(root: Path, name: str) -> ListedFile:
    """Return a file's entry for the manifest, computed from the file's content. Raises OSError if it cannot be read."""
    with (root / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return ListedFile(path=name, size=file.tell(), sha256=digest)


def is_seen(name: str) -> bool:
    """Return True if the path belongs to the recorded part of a run, which is written before anything is judged."""
    return name.partition("/")[0] in layout.SEEN


def seen_digest(files: list[ListedFile], folders: list[str]) -> str:
    """Return the SHA-256 of the recorded files: header, contracts, waivers and evidence.

    The hashed text has one line for each file, and then one line for each folder.
    """
    lines = [f"{file.sha256} {file.size} {file.path}" for file in files if is_seen(file.path)]
    lines += [f"{name}/" for name in folders if is_seen(name)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# Largest number of files and folders that are listed. Without a limit, an untrusted directory could be listed for
# hours.
MOST = 100_000
# Limits for a path below the top folder of an archive: the number of bytes, and the number of names in the path.
_LONGEST, _DEEPEST = LIMITS.name - len(TOP) - 1, LIMITS.depth - 1


@dataclass
class Listing:
    """The content of a folder, by relative paths. files: plain files with their size in bytes.

    unfit: entries that a run directory must not contain -> the reason, such as a link, a device or a forbidden name.
    """

    files: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    unfit: dict[str, str] = field(default_factory=dict)


def listing(root: Path, leave_out: Collection[str] = ()) -> Listing:
    """Return the content of `root` at any depth. leave_out: names at the top of `root` that are not listed."""
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
    """Add a directory entry to the listing. Return True for a folder, whose content must be listed as well."""
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
    """Return the reason why a directory entry is not allowed in a run directory, or None for a plain file or a
    folder."""
    if stat.S_ISDIR(status.st_mode):
        return None
    problems = {
        "a symbolic link": stat.S_ISLNK(status.st_mode),
        "a pipe, a socket or a device": not stat.S_ISREG(status.st_mode),
        "a hard link: the same file has another name": status.st_nlink > 1,
        "its owner may not read it": not status.st_mode & stat.S_IRUSR,
        f"{status.st_size} bytes, but at most {SIZE_LIMIT} are allowed": status.st_size > SIZE_LIMIT,
    }
    return next((problem for problem, found in problems.items() if found), None)


UNFINISHED = "the run did not finish, or its manifest.json was removed"
UNSEALED = (
    "the run has no manifest.json; `harness judge --write` seals runs that were recorded before manifests existed"
)


@dataclass(frozen=True)
class Seal:
    """The result of comparing a directory with its manifest.

    manifest, digest: the valid manifest and its digest, or None. within: the manifest that lists header and evidence.
    For a published run, this manifest is in the archive. missing: the reason why there is no manifest. differences:
    pairs of a file name and the file's difference from the manifest.
    """

    manifest: Manifest | None = None
    digest: str | None = None
    within: Manifest | None = None
    missing: str = ""
    differences: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        return not self.missing and not self.differences

    def lines(self) -> list[str]:
        """Return one line for each difference."""
        return [f"{name}: {what}" for name, what in self.differences]


# The seal of a directory that is still being written. This seal lists no files, so no file can differ from it.
BEING_WRITTEN = Seal()


def seal_of(place: Place, *, before_manifests: bool) -> Seal:
    """Compare a directory with its manifest. For a published run, also compare the archive's files with the archive's
    manifest.

    before_manifests: True if manifests did not exist when the run was recorded. A run without a manifest may then be a
    finished run.
    """
    if any(os.path.lexists(folder / layout.INCOMPLETE) for folder in (place.root, place.derived)):
        return Seal(missing=UNFINISHED)
    if not os.path.lexists(place.derived / layout.MANIFEST):
        return Seal(missing=UNSEALED if before_manifests else UNFINISHED)
    try:
        manifest, digest = read_manifest(place.derived)
    except Damaged as damage:
        return Seal(differences=((layout.MANIFEST, str(damage)),))
    found = list(differences(place.derived, manifest))
    within = manifest
    if place.published and (before_manifests is False or os.path.lexists(place.root / layout.MANIFEST)):
        try:
            within, _ = read_manifest(place.root)
        except Damaged as damage:
            found.append((f"{layout.ARCHIVE}/{layout.MANIFEST}", str(damage)))
        else:
            found += differences(place.root, within)
    elif place.published:
        within = manifest_of(place.root)
    if not found and manifest.seen != seen_digest(within.files, within.folders):
        found.append((layout.MANIFEST, "belongs to different evidence than the evidence in this directory"))
    return Seal(manifest, digest, within, differences=tuple(found))


def differences(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield name and difference of each file or folder that differs from the manifest's entry.

    Only files with the listed size are hashed. An empty folder may be missing, because CI artifacts do not keep it.
    """
    found = listing(folder, leave_out=(layout.MANIFEST,))
    yield from ((shown(name), what) for name, what in sorted(found.unfit.items()))
    listed, folders = manifest.by_path(), set(manifest.folders)
    for name in sorted({*listed, *folders} - (empty_folders(manifest) - set(found.files))):
        if not _is_below(name, found.unfit) and (what := _difference(folder, name, listed.get(name), found)):
            yield shown(name), what
    for name in sorted({*found.files, *found.folders} - {*listed, *folders}):
        yield shown(name), "not recorded with the run"


def _is_below(name: str, unfit: Collection[str]) -> bool:
    """Return True if `unfit` contains the name or a folder above it. The problem was then already reported."""
    parts = name.split("/")
    return any("/".join(parts[:length]) in unfit for length in range(1, len(parts) + 1))


def _difference(folder: Path, name: str, listed: ListedFile | None, found: Listing) -> str | None:
    """Return the difference of a file or folder from its entry in the manifest, or None if there is none. listed: the
    entry of a file; None for a folder."""
    if listed is None:
        return None if name in found.folders else "a file instead of a folder" if name in found.files else "missing"
    if name not in found.files:
        return "a folder instead of a file" if name in found.folders else "missing"
    if found.files[name] != listed.size:
        return f"changed: {found.files[name]} bytes, but {listed.size} were recorded"
    try:
        return None if listed_file(folder, name) == listed else "changed"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def empty_folders(manifest: Manifest) -> set[str]:
    """Return the folders that a manifest lists without any file in them."""
    above = {str(folder) for file in manifest.files for folder in PurePosixPath(file.path).parents}
    return set(manifest.folders) - above


def manifest_of(
    folder: Path, only: Callable[[str], bool] = lambda _name: True, before: Manifest | None = None
) -> Manifest:
    """Return a manifest of the folder's current content. only: a function that selects paths.

    before: the folder's earlier manifest. The empty folders in it stay in the new manifest, even if they are missing
    now. Raises EvidenceError for files that a run directory must not contain.
    """
    found = listing(folder, leave_out=(layout.MANIFEST, layout.INCOMPLETE, layout.JOURNAL, layout.LOCK))
    if found.unfit:
        name, what = min(found.unfit.items())
        unfit_entry = f"{shown(name)}: {what}"
        raise EvidenceError(
            "a run directory must contain only plain files and folders", where=str(folder), got=unfit_entry
        )
    files = [listed_file(folder, name) for name in sorted(found.files) if only(name)]
    still_listed = empty_folders(before) - set(files) if before is not None else set()
    folders = sorted(name for name in found.folders | still_listed if only(name))
    return Manifest(files=files, folders=folders, seen=seen_digest(files, folders))


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Write the manifest completely or not at all. Return its digest."""
    text = manifest_text(manifest)
    write_text(folder / layout.MANIFEST, text)
    return digest_of(text)


def seal_anew(place: Place, seal: Seal) -> None:
    """Seal a directory again after its pages and verdicts were rewritten. Keep the manifest if nothing changed.

    Raises EvidenceError if the evidence differs from the sealed evidence.
    """
    folder = place.writable()
    before = seal.manifest
    today = manifest_of(folder, before=before)
    if place.published:
        today = today.model_copy(update={"seen": manifest_of(place.root, only=is_seen, before=seal.within).seen})
    if before is not None and before.seen != today.seen:
        raise EvidenceError(
            "the evidence must be unchanged when verdicts and pages are written again",
            where=str(place.named),
            got="evidence that differs from the sealed evidence",
        )
    if before is None or today != before.model_copy(update={"replaces": None}):
        write_manifest(folder, today.model_copy(update={"replaces": seal.digest}))
