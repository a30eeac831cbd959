"""Run one server of each kind (`warm_server`) for all processes of a test session, as long as one may need it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import warm_server
from filelock import FileLock


@contextmanager
def server_of(kind: str, shared: Path, path: Sequence[str]) -> Iterator[str]:
    """Yield the address of a server of this kind, which is started if there is none.

    shared: a folder of all processes of the session. path: where a started server searches modules.
    """
    note = shared / f"warm-{kind}"
    with FileLock(f"{note}.lock"):
        lease = _lease(note)
        started = None if lease is not None else _start(kind, note, path)
    try:
        yield note.read_text()
    finally:
        if lease is not None:
            lease.close()
        if started is not None:
            started.communicate()  # it ends with the last who may ask


def _lease(note: Path) -> socket.socket | None:
    """Return a connection that keeps the server at the noted address running; None if there is no such server."""
    connection = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        connection.connect(note.read_text())
        connection.sendall(warm_server.LEASE)
        if connection.recv(1):
            return connection
    connection.close()
    return None


def _start(kind: str, note: Path, path: Sequence[str]) -> subprocess.Popen[bytes]:
    folder = tempfile.mkdtemp(prefix="warm-")  # the address of a socket is short; the server removes it
    address, room = f"{folder}/socket", "x" * warm_server.ROOM
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("warm_server.py")), address, kind, room],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(path), "ROOM": room},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    note.write_text(address)
    return process
