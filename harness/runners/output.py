"""Drain a worker's output, keep its first part, and notice when it never stops."""

from __future__ import annotations

import os
import threading
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
        self._thread = threading.Thread(target=self._drain, name="worker output", daemon=True)
        self._thread.start()

    @property
    def exceeded(self) -> bool:
        """More than `LIMIT` bytes were printed."""
        return self._total > self.LIMIT

    def join(self) -> None:
        """Wait for the pipe's end, which comes once every process that could write to it is gone."""
        self._thread.join(self._JOIN_S)

    def _drain(self) -> None:
        kept = 0
        file: IO[bytes] | None = None
        with self._pipe:
            while chunk := self._pipe.read1(2**16):  # type: ignore[attr-defined]
                self._total += len(chunk)
                part = chunk[: self.KEPT - kept]
                if part:
                    file = file or self._file()
                    file.write(part)
                    file.flush()
                    kept += len(part)
        if file is not None:
            file.close()

    def _file(self) -> IO[bytes]:
        try:
            return self._path.open("xb")
        except OSError:  # the worker removed its directory, or put a file of its own there: its output is counted only
            return Path(os.devnull).open("wb")
