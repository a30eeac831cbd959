"""Take the digest of evidence as it is written, so that a file which is edited later is seen."""

from __future__ import annotations

import os

# bound here, before a system is imported: it could replace them in their modules
from hashlib import sha256
from pathlib import Path

from harness.evidence.base import Record
from harness.numbers import Count


class Segment(Record):
    """Bytes that one process wrote one after the other into a file of its run's directory."""

    name: str
    start: Count
    length: Count
    sha256: str


class Written(Record):
    """All that a worker wrote. In a file that another process wrote to in between, it has several segments."""

    segments: list[Segment]

    def changed(self, directory: Path) -> str | None:
        """Return the name of a file that does not hold what was written, or holds more; None if there is none."""
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
    """A file that is written from its end on, with the digest of what this process wrote. Each write is flushed."""

    def __init__(self, path: Path, mode: str) -> None:
        self._name, self._file = path.name, path.open(mode)
        self._segments: list[Segment] = []
        self._begin()

    def _begin(self) -> None:
        self._start = self._end = os.fstat(self._file.fileno()).st_size
        self._digest = sha256()

    def write(self, text: str) -> None:
        if os.fstat(self._file.fileno()).st_size != self._end:  # another process wrote
            self._segments = self.segments()
            self._begin()
        written = text.encode("utf-8")
        self._file.write(written)
        self._file.flush()
        self._end += len(written)
        self._digest.update(written)

    def restart(self) -> None:
        """Forget all that was written."""
        self._file.seek(0)
        self._file.truncate()
        self._segments = []
        self._begin()

    def segments(self) -> list[Segment]:
        """Return what this process wrote so far."""
        length = self._end - self._start
        last = Segment(name=self._name, start=self._start, length=length, sha256=self._digest.hexdigest())
        return [*self._segments, last]

    def close(self) -> None:
        self._file.close()
