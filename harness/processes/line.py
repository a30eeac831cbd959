"""Connect a process and its child by a line: a socket on the child's standard input.

A message is a line of text.
A worker asks its supervisor for `ALONE`, and later for `TOGETHER`; each is answered with `GO`. At its end it sends
`WRITTEN` with the digests of what it wrote.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

# bound here, before a system is imported: it could replace them in their modules
from select import select
from time import monotonic

from harness.processes.import_path import use_given_path

READY, ALONE, TOGETHER, GO, WRITTEN = "ready", "alone", "together", "go", "written "
MOST_BYTES = 16 * 2**20  # of a message
CHUNK = 2**20
SENDING_S = 1.0  # for a child that reads nothing to make room
_send, _receive = socket.socket.sendall, socket.socket.recv  # likewise


class NoMessage(ValueError):  # noqa: N818 - who watches the process says what it is to the run
    """The other end wrote more than a message has, and no end of a line."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_BYTES // 2**20} MiB on the harness's own line, and no message")


class Line:
    """One end of the line. What is sent to an end that is gone is lost; who watches the process knows of it."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()
        self._searched = 0  # bytes of it that hold no end of a line
        self.ended = False  # whether the other end was found to be gone

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, text: str) -> None:
        """Send one line; `text` has no line break."""
        with suppress(OSError):
            _send(self._socket, text.encode() + b"\n")

    def receive(self, timeout: float | None) -> str | None:
        """Return the next line; "" if the other end is gone, None if neither comes within `timeout` seconds.

        timeout: for the whole line; a part of one is kept for the next call. None waits without
        limit. Raises `NoMessage` for a line of more than `MOST_BYTES`.
        """
        until = None if timeout is None else monotonic() + timeout
        left = timeout
        while (end := self._received.find(b"\n", self._searched)) < 0:
            self._searched = len(self._received)
            if self._searched > MOST_BYTES:
                raise NoMessage
            if (left is not None and left < 0.0) or not select([self._socket], [], [], left)[0]:
                return None
            chunk = self._chunk()
            if not chunk:
                self.ended = True
                return ""
            self._received += chunk
            left = None if until is None else until - monotonic()
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return line.decode("utf-8", "replace")

    def _chunk(self) -> bytes:
        """Return some of the bytes that have arrived; none if the other end is gone."""
        try:
            return _receive(self._socket, CHUNK)
        except OSError:
            return b""

    def close(self) -> None:
        self._socket.close()


def pair() -> tuple[Line, socket.socket]:
    """Return the parent's end, and the socket that becomes the child's standard input.

    A child that never reads its answers does not block the parent: they are lost after `SENDING_S`.
    """
    ours, theirs = socket.socketpair()
    ours.settimeout(SENDING_S)
    return Line(ours), theirs


def take_standard_input() -> Line:
    """Return the child's end, taken from standard input, which is empty from then on.

    A child has imported the harness by now. From here on it finds the modules that its parent finds.
    """
    use_given_path()
    line = Line(socket.socket(fileno=os.dup(0)))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line
