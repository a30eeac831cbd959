"""The line between a worker and its supervisor: a socket on the worker's standard input, a line of text a message.

The supervisor sends one job; the worker asks to be `ALONE`, and later says `TOGETHER`; each is answered with `GO`.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from pathlib import Path

from harness.commits.import_path import ImportPath
from harness.evidence.base import Record

READY, ALONE, TOGETHER, GO = "ready", "alone", "together", "go"


class Job(Record):
    """What an interpreter that waits is told to do: the folder with its `run.json`, and what to set before.

    folder: its path's bytes, in hexadecimal; a path need be no text that JSON can hold.
    threads: of torch and of the libraries that heed OMP_NUM_THREADS, on the host; None: as they choose.
    """

    folder: str
    variables: dict[str, str]
    baseline: ImportPath | None = None  # where the modules of arms with a commit are found
    exchange: str | None = None  # folder of tensors that cross from that commit to the other
    threads: int | None = None

    @property
    def directory(self) -> Path:
        return Path(os.fsdecode(bytes.fromhex(self.folder)))


class Line:
    """One end of the line. What is sent to an end that is gone is lost; who watches the process knows of it."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, text: str) -> None:
        """One line; `text` has none."""
        with suppress(OSError):
            self._socket.sendall(text.encode() + b"\n")

    def receive(self, timeout: float | None) -> str | None:
        """The next line, "" once the other end is gone; None when neither comes in so many seconds (None: it waits)."""
        while b"\n" not in self._received:
            if not select.select([self._socket], [], [], timeout)[0]:
                return None
            try:
                chunk = self._socket.recv(2**16)
            except OSError:
                chunk = b""
            if not chunk:
                return ""
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8", "replace")

    def close(self) -> None:
        self._socket.close()


def pair() -> tuple[Line, socket.socket]:
    """The supervisor's end, and the socket that becomes the worker's standard input."""
    ours, theirs = socket.socketpair()
    return Line(ours), theirs


def take_standard_input() -> Line:
    """The worker's end: taken from standard input, which is empty for the system."""
    line = Line(socket.socket(fileno=os.dup(0)))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line
