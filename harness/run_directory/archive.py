"""Write an archive of a run directory, and unpack an archive from an untrusted source.

Equal runs give archives with equal bytes. Unpacking reads the archive as a stream and trusts none of the sizes in it.
Bytes and files are counted before they are written, so nothing that exceeds a limit is written. Python's `data` filter
for tar archives is also used if this Python version has it.
"""

from __future__ import annotations

import gzip
import io
import lzma
import shutil
import tarfile
import unicodedata
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn, Protocol

from harness.errors import EvidenceError
from harness.evidence.files import SIZE_LIMIT
from harness.evidence.layout import shown, unfit

SUFFIXES = (".tar", ".tar.gz", ".tar.xz", ".tgz", ".txz")
TOP = "run"  # name of the only folder at the top level of an archive that the harness writes
_BLOCK = 20 * 512  # number of bytes that tarfile reads at a time
_PADDING = 2**20  # largest number of zero bytes after the last file, which pad a tar file to a whole record
_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError, RecursionError, OverflowError)
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


@dataclass(frozen=True)
class Limits:
    """Limits for unpacking an archive. Sizes are in bytes."""

    compressed: int = 256 * 2**20
    unpacked: int = 2**30  # largest number of bytes of all files together
    file: int = SIZE_LIMIT
    members: int = 10_000  # largest number of files and folders
    # Largest number of bytes between the contents of two files. One header with a long name needs at most this many
    # bytes.
    header: int = 16 * 2**10
    name: int = 512  # largest number of bytes in a path
    depth: int = 8  # largest number of names in a path
    decoder: int = 128 * 2**20  # largest memory of the decoder in bytes; `xz -9` needs 65 MiB


LIMITS = Limits()


def is_archive(path: Path) -> bool:
    """Return True if the file's name has a suffix of archives that the harness can read (`SUFFIXES`)."""
    return path.name.lower().endswith(SUFFIXES)


def write_archive(
    root: Path, files: Iterable[str], folders: Collection[str], archive: Path, texts: Mapping[str, str]
) -> None:
    """Write a `.tar.xz` archive with files of `root`, with folders, and with `texts` (contents by name).

    The same names and contents give the same bytes.
    """
    with (
        lzma.open(archive, "xb", preset=9 | lzma.PRESET_EXTREME) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted([*files, *folders, *texts]):
            source, member = root / name, tarfile.TarInfo(f"{TOP}/{name}")
            if name in texts:
                data = texts[name].encode()
                member.size, member.mode = len(data), 0o644
                tar.addfile(member, io.BytesIO(data))
            elif name in folders:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            else:
                member.size, member.mode = source.stat().st_size, 0o644
                with source.open("rb") as file:
                    tar.addfile(member, file)


def unpack(archive: Path, folder: Path, limits: Limits = LIMITS, first: str = "") -> None:
    """Unpack an archive into an empty folder.

    first: the name of the archive's first folder, if only this folder is to be unpacked. "" unpacks everything. Raises
    EvidenceError for an archive that is damaged, exceeds a limit, or contains anything except plain files and folders
    below its top. The caller must then remove the folder.
    """
    if not archive.is_file():
        raise EvidenceError("an archive of a run must be a plain file", where=str(archive), got="no plain file")
    size = archive.stat().st_size
    if size > limits.compressed:
        raise EvidenceError(
            f"an archive of a run must have at most {limits.compressed} bytes",
            where=str(archive),
            got=f"{size} bytes",
            remedy="unpack the archive yourself, and name the folder",
        )
    try:
        with archive.open("rb") as file:
            stream = _Stream(_decompressed(file, archive, limits), archive)
            stream.allow(limits.header)  # opening the archive reads the first header
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member, bufsize=_BLOCK) as tar:  # type: ignore[call-overload]
                _Unpacking(archive, folder, limits, tar, stream, first).run()
    except _DAMAGE as error:
        raise EvidenceError(
            "the archive of a run cannot be unpacked completely",
            where=str(archive),
            got=f"{type(error).__name__}: {str(error)[:200]}",
            remedy="download the archive again, or create it again",
        ) from error


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _decompressed(file: IO[bytes], archive: Path, limits: Limits) -> _Readable:
    name = archive.name.lower()
    if name.endswith("xz"):
        return _XzFile(file, limits.decoder)
    return gzip.GzipFile(fileobj=file) if name.endswith("gz") else file


class _XzFile:
    """One xz stream that is decoded with limited memory. `lzma.LZMAFile` offers no such limit."""

    def __init__(self, file: IO[bytes], memory: int) -> None:
        self._file, self._decoder = file, lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=memory)

    def read(self, size: int, /) -> bytes:
        while not self._decoder.eof:
            chunk = self._file.read(io.DEFAULT_BUFFER_SIZE) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not chunk:
                raise EOFError("the compressed stream ends early")
            if data := self._decoder.decompress(chunk, size):
                return data
        if self._decoder.unused_data or self._file.read(1):
            raise lzma.LZMAError("there are bytes after the end of the compressed stream")
        return b""


class _Stream:
    """A stream that gives tarfile only the allowed number of bytes.

    Without this limit, one false header could make tarfile read a gigabyte.
    """

    def __init__(self, source: _Readable, archive: Path) -> None:
        self._source, self._archive, self._left = source, archive, 0

    def allow(self, size: int) -> None:
        """Allow `size` more bytes to be read, in addition to the block that tarfile reads ahead."""
        self._left = size + _BLOCK

    def read(self, size: int, /) -> bytes:
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise EvidenceError(
                "the headers and the padding between the files of a run's archive must be short",
                where=str(self._archive),
                got="a header or padding that is too long",
                remedy=_DISTRUST,
            )
        return data


_DISTRUST = "do not unpack the archive; ask for one that `harness pack` made"


class _Member(tarfile.TarInfo):
    """A member of an archive. A damaged header raises an error. tarfile itself would treat such a header as the end of
    the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Member:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined] # the regular end; typeshed lacks this error
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"a damaged header: {error}") from error


@dataclass
class _Unpacking:
    """An archive that is being unpacked. spelled: the path of each file and folder as the archive spells it.

    The keys of `spelled` are these paths in lower case and in composed Unicode form. Two paths that differ only in case
    or in Unicode form therefore have the same key.
    """

    archive: Path
    folder: Path
    limits: Limits
    tar: tarfile.TarFile
    stream: _Stream
    first: str = ""
    spelled: dict[str, str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    unpacked: int = 0

    def run(self) -> None:
        """Unpack every file and folder, or only the folder `first`. Raise ReadError if the archive is read to its end
        and anything except zero bytes follows the last file or folder."""
        count = 0
        while (member := self._next()) is not None:
            if self.first and self.first not in PurePosixPath(member.name).parts[:2]:
                return
            count += 1
            if count > self.limits.members:
                self._refuse(member.name, f"must have at most {self.limits.members} files and folders", "more")
            self._one(member)
        self.stream.allow(_PADDING)
        rest = self.tar.fileobj
        while rest is not None and (data := rest.read(_BLOCK)):
            if data.strip(b"\0"):
                raise tarfile.ReadError("bytes after the last file of the archive")

    def _next(self) -> tarfile.TarInfo | None:
        self.stream.allow(self.limits.header)
        return self.tar.next()

    def _one(self, member: tarfile.TarInfo) -> None:
        path = self._inside(member.name)
        if member.issparse() or not (member.isdir() or member.type in _PLAIN):
            got = "a sparse file" if member.issparse() else _KINDS.get(member.type, "something else")
            self._refuse(member.name, "must contain only plain files and folders", got)
        if hasattr(tarfile, "data_filter"):
            tarfile.data_filter(member, str(self.folder))
        if not path.parts and member.isdir():  # the entry of the folder itself, which `tar` writes for `.`
            return
        self._once(path, member)
        target = self.folder / path
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        self._copy(member, target)

    def _inside(self, name: str) -> PurePosixPath:
        """Return the member's path below the folder, without `.`. Refuse a path that is too long or not allowed."""
        rule = "must stay inside its folder, under names that every system can write"
        if problem := unfit(name):
            self._refuse(name, rule, problem)
        path = PurePosixPath(name)
        if len(name.encode()) > self.limits.name or len(path.parts) > self.limits.depth:
            most = f"at most {self.limits.name} bytes and {self.limits.depth} names"
            self._refuse(name, f"must have paths of {most}", f"{len(name.encode())} bytes and {len(path.parts)} names")
        return path

    def _once(self, path: PurePosixPath, member: tarfile.TarInfo) -> None:
        """Refuse a path that occurred before, that differs from an earlier path only in case or Unicode form, or that
        is below a file."""
        rule = "must name each file once, under a name that differs from all others on every system"
        for part in [path, *path.parents][:-1]:
            key = unicodedata.normalize("NFC", str(part)).casefold()
            if self.spelled.setdefault(key, str(part)) != str(part):
                self._refuse(
                    member.name,
                    rule,
                    f"a name that differs from {shown(self.spelled[key])} only in case or in Unicode form",
                )
            if str(part) in self.files:
                self._refuse(member.name, rule, f"{shown(str(part))}, which is also the name of a file")
        if str(path) in self.listed or (not member.isdir() and (self.folder / path).is_dir()):
            self._refuse(member.name, rule, "a name that was used before")
        self.listed.add(str(path))
        if not member.isdir():
            self.files.add(str(path))

    def _copy(self, member: tarfile.TarInfo, target: Path) -> None:
        if not 0 <= member.size <= self.limits.file:
            self._refuse(
                member.name, f"must contain only files of at most {self.limits.file} bytes", f"{member.size} bytes"
            )
        self.unpacked += member.size
        if self.unpacked > self.limits.unpacked:
            self._refuse(member.name, f"must unpack to at most {self.limits.unpacked} bytes", "more")
        self.stream.allow(member.size + self.limits.header)
        source = self.tar.extractfile(member)
        if source is not None:  # this member is a plain file; if the file ends early, tarfile raises an error
            with target.open("xb") as file:
                shutil.copyfileobj(source, file)

    def _refuse(self, name: str, rule: str, got: str) -> NoReturn:
        where = f"{self.archive}: {shown(name)}"
        raise EvidenceError(f"an archive of a run {rule}", where=where, got=got, remedy=_DISTRUST)
