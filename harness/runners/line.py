"""The line between a worker and its supervisor: a socket on the worker's standard input, a line of text a message.

The supervisor sends one job; the worker asks to be `ALONE`, and later says `TOGETHER`; each is answered with `GO`.
"""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from pathlib import Path

from harness.commits.import_path import ImportPath
from harness.evidence.base import Record

READY, ALONE, TOGETHER, GO = "ready", "alone", "together", "go"
MOST_BYTES = 16 * 2**20  # of a message
CHUNK = 2**20
SENDING_S = 1.0  # for a worker that reads nothing to make room


class NoMessage(Exception):  # noqa: N818 - who watches the process says what it is to the run
    """The other end wrote more than a message has, and no end of a line."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_BYTES // 2**20} MiB on the harness's own line, and no message")


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
        self._received = bytearray()
        self._searched = 0  # bytes of it that hold no end of a line

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, text: str) -> None:
        """One line; `text` has none."""
        with suppress(OSError):
            self._socket.sendall(text.encode() + b"\n")

    def receive(self, timeout: float | None) -> str | None:
        """The next line, "" once the other end is gone; None when neither comes in so many seconds (None: it waits).

        The seconds are those of the whole line: a part of one is kept for the next call. Raises `NoMessage` for one
        without end.
        """
        until = None if timeout is None else time.monotonic() + timeout
        left = timeout
        while (end := self._received.find(b"\n", self._searched)) < 0:
            self._searched = len(self._received)
            if self._searched > MOST_BYTES:
                raise NoMessage
            if (left is not None and left < 0.0) or not select.select([self._socket], [], [], left)[0]:
                return None
            chunk = self._chunk()
            if not chunk:
                return ""
            self._received += chunk
            left = None if until is None else until - time.monotonic()
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return line.decode("utf-8", "replace")

    def _chunk(self) -> bytes:
        """What is there, some of it; nothing once the other end is gone."""
        try:
            return self._socket.recv(CHUNK)
        except OSError:
            return b""

    def close(self) -> None:
        self._socket.close()


def pair() -> tuple[Line, socket.socket]:
    """The supervisor's end, and the socket that becomes the worker's standard input.

    A worker that asks and never reads the answers holds nobody up: they are lost.
    """
    ours, theirs = socket.socketpair()
    ours.settimeout(SENDING_S)
    return Line(ours), theirs


def take_standard_input() -> Line:
    """The worker's end: taken from standard input, which is empty for the system."""
    line = Line(socket.socket(fileno=os.dup(0)))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line
