"""Drain a worker's output, keep its first part, and notice when it never stops."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import IO


class OutputPump:
    """A thread that reads a pipe to its end: the first `KEPT` bytes go to a file, the rest is counted."""

    KEPT = 256 * 2**10
    LIMIT = 10 * 2**20
    _JOIN_S = 5.0

    def __init__(self, pipe: IO[bytes], path: Path) -> None:
        self._pipe, self._path = pipe, path
        self._total = 0
        self._file: IO[bytes] | None = None
        self._lost = False
        self._thread = threading.Thread(target=self._drain, name="worker output", daemon=True)
        self._thread.start()

    @property
    def exceeded(self) -> bool:
        """Return True if more than `LIMIT` bytes were printed."""
        return self._total > self.LIMIT

    def join(self) -> None:
        """Wait for the pipe's end, which comes once every process that could write to it is gone."""
        self._thread.join(self._JOIN_S)

    def _drain(self) -> None:
        with self._pipe:
            while chunk := self._pipe.read1(2**16):  # type: ignore[attr-defined]
                part = chunk[: max(0, self.KEPT - self._total)]
                self._total += len(chunk)
                if part and not self._lost:
                    self._keep(part)
        if self._file is not None:
            with suppress(OSError):  # what is buffered has no room either
                self._file.close()

    def _keep(self, part: bytes) -> None:
        try:
            self._file = self._file or self._path.open("xb")
            self._file.write(part)
            self._file.flush()
        except OSError:  # the worker removed its directory, or put a file of its own there; or the disk is full
            self._lost = True  # its output is counted only
