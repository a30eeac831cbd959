"""Archives that no ordinary tool writes."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Member:
    """One member of an archive. If `size` is given, it is written in place of the true size of the data."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    size: int | None = None


def header(member: Member) -> tarfile.TarInfo:
    info = tarfile.TarInfo(member.name)
    info.type, info.linkname = member.kind, member.link
    info.size = len(member.data) if member.size is None else member.size
    return info


def tar_bytes(members: Sequence[Member]) -> bytes:
    """Return a tar file of these members, one after the other, even if they are invalid."""
    parts = []
    for member in members:
        padding = b"\0" * (-len(member.data) % tarfile.BLOCKSIZE)
        parts += [header(member).tobuf(tarfile.PAX_FORMAT, errors="surrogateescape"), member.data, padding]
    return b"".join(parts) + b"\0" * tarfile.RECORDSIZE


def archive_of(path: Path, *members: Member) -> Path:
    """Write a `.tar.xz` archive of these members and return its path."""
    path.write_bytes(lzma.compress(tar_bytes(members)))
    return path


def packed(directory: Path, archive: Path, top: str) -> Path:
    """Pack a directory as ordinary tar does, under `top` ("." or a folder's name); the name selects compression."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(directory, arcname=top)
    ending = archive.name.lower()[-2:]
    whole = buffer.getvalue()
    if ending == "gz":
        whole = gzip.compress(whole)
    elif ending == "xz":
        whole = lzma.compress(whole, preset=0)  # xz's own default touches 90 MB of memory
    archive.write_bytes(whole)
    return archive
