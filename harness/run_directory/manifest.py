"""Define `manifest.json`, which lists every other file of a folder with size and digest and, written last, seals it.

One folder has one manifest, at its top. In a published folder it lists the pages and the archive, and a manifest in the
archive lists what was seen. `seen` is the same in both, however often the verdicts are judged again.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, parse, read_bytes
from harness.numbers import dump_json
from harness.run_directory.names import shown, unfit

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
