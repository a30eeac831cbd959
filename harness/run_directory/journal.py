"""Keep `journal.json` in a run directory that is being made: how it was begun, and the digest of each ended run.

This file alone shows what of an interrupted directory can be resumed, so it is written whole at each end of a run. It
goes away when the directory is sealed: from then on the manifest has the digests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.errors import UsageError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, parse, read_bytes, write_text
from harness.numbers import dump_json
from harness.run_directory.listing import listing
from harness.run_directory.manifest import Digest, digest_of, listed_file


class JournalFile(Record):
    """The whole file, but for its checksum. Values are SHA-256, so that no name of a folder is kept here.

    headers: of `run.json` as it was written last, and before a change that may not have come to pass; options: of the
    command line, by name; plan: of each run that is executed; ended: of the evidence of each run that came to its end.
    """

    format_version: Literal[1] = 1
    headers: list[Digest]
    options: dict[str, Digest]
    plan: dict[str, Digest]
    ended: dict[str, Digest] = Field(default_factory=dict)


class _Written(JournalFile):
    checksum: Digest  # of all else, so that a changed file is distinguished from a whole one


def journal_text(content: JournalFile) -> str:
    values = content.model_dump(mode="json")
    return dump_json({**values, "checksum": digest_of(dump_json(values))}, indent=1) + "\n"


def read_journal(directory: Path) -> JournalFile:
    """Return the journal of a directory. Raises `Damaged`."""
    data = read_bytes(directory / layout.JOURNAL)
    content = JournalFile(**parse(data, _Written, layout.JOURNAL).model_dump(exclude={"checksum"}))
    if journal_text(content).encode() != data:
        raise Damaged(f"{layout.JOURNAL} was changed, or is not written as the harness writes it")
    return content


def evidence_digest(evidence: Path, run: str) -> str:
    """Return the SHA-256 over all files below `evidence/RUN`, with their names, even for a run that left no folder."""
    folder = evidence / run
    found = listing(folder)
    files = [listed_file(folder, name) for name in sorted(found.files)]
    lines = [f"{file.sha256} {file.size} {file.path}" for file in files]
    lines += [f"{name}/" for name in sorted(found.folders)] + [f"{name}: unfit" for name in sorted(found.unfit)]
    return digest_of("\n".join(lines))


@dataclass
class Journal:
    """The file of one directory, in the hands of the process that makes the directory."""

    directory: Path
    content: JournalFile
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def write(self) -> None:
        write_text(self.directory / layout.JOURNAL, journal_text(self.content))

    def note_ends(self, runs: Iterable[str]) -> None:
        """Note that these runs came to their end, so that their evidence stays as it is.

        Where the directory disappears meanwhile nothing is noted, and the runs are executed again.
        """
        with self._lock, suppress(OSError):
            digests = {run: evidence_digest(self.directory / layout.EVIDENCE, run) for run in runs}
            self.content = self.content.model_copy(update={"ended": {**self.content.ended, **digests}})
            self.write()


def changed_since(directory: Path, journal: JournalFile) -> list[str]:
    """Return the ended runs whose evidence is not what the journal noted."""
    evidence = directory / layout.EVIDENCE
    return [run for run, digest in sorted(journal.ended.items()) if evidence_digest(evidence, run) != digest]


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold the directory, so that no other process makes or resumes it. Raises UsageError where one already does."""
    from filelock import FileLock, Timeout  # comes with the extra `run`, as all that executes anything

    lock = FileLock(directory / layout.LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            "one process at a time makes a run directory", where=str(directory), got="another one is at work in it"
        ) from None
    try:
        yield
    finally:
        lock.release()


def is_free(lock: Path) -> bool:
    """Return True if no process holds a lock as `alone_in` takes it, or the file is missing. Do not create it."""
    import fcntl

    try:
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def digest_of_each(values: Mapping[str, object]) -> dict[str, str]:
    """Return the SHA-256 of each value as JSON."""
    return {name: digest_of(dump_json(value, sort_keys=False)) for name, value in values.items()}
