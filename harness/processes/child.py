"""Start a Python process of the harness, exchange messages with it, and learn how it ended.

Process and child are connected by a line: a socket on the child's standard input. A message is a line of text, usually
a model as JSON. A worker asks its supervisor for `ALONE`, and later for `TOGETHER`; each is answered with `GO`. At its
end it sends `WRITTEN` with the digests of what it wrote. Where a child ends, or writes anything else, its parent gets
an `Ending` instead of an answer.

Python runs a `sitecustomize.py` that it finds on its path before anything else. So a child starts with the path that
the command itself was started with, and the folders that the harness added since follow in a variable.
"""

from __future__ import annotations

import math
import os
import re
import signal
import site
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from time import monotonic
from types import MappingProxyType
from typing import IO, Literal, Protocol, Self, TypeVar, cast

from harness.processes.kept import KeptProcess

VARIABLE = (
    "CONTRACT_HARNESS_PATH"  # for a child: the path to use; in a child from then on: the path to start others with
)
_HARNESS = str(Path(__file__).resolve().parents[2])


def child_path() -> str:
    """Return the PYTHONPATH with which a process finds the modules that this process finds."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)


def path_at_start() -> str:
    """Return the PYTHONPATH that the command was started with, and with it the harness where Python would lack it.

    Python searches PYTHONPATH before its standard library. A folder of installed packages in it could hide a module of
    Python behind an old backport.
    """
    of_installed = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lacks = _HARNESS not in map(os.path.realpath, of_installed)
    given = os.environ.get("PYTHONPATH", "")
    return os.environ.get(VARIABLE) or os.pathsep.join(filter(None, (given, _HARNESS if lacks else "")))


def path_of_child(found: str | None) -> Mapping[str, str]:
    """Return the variables of a child: the path to start with and, for later, `found`.

    found: the whole path that the child is to use; None: the one that this process gives to its children.
    """
    return {"PYTHONPATH": path_at_start(), VARIABLE: os.environ.get("PYTHONPATH", "") if found is None else found}


def use_given_path() -> None:
    """Find modules from now on where the parent wants this child to find them. The child's own children do, too."""
    given, first = os.environ.get(VARIABLE), os.environ.get("PYTHONPATH", "")
    if given:
        os.environ.update({"PYTHONPATH": given, VARIABLE: first})
        sys.path[:] = dict.fromkeys([*given.split(os.pathsep), *sys.path])


# bound here, before a system is imported: it could replace them in their modules


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


# Seconds between two looks whether a child lives: its line stays open while a fork of it holds it.
LOOK_S = 10.0
# Files that a runner reads and obeys after a step, and credentials of the job.
_OF_CI = re.compile(
    r"ACTIONS_.*|(GITHUB|GH|CI|BUILDKITE)_(.*_)?(TOKEN|PASSWORD)|GITHUB_(ENV|PATH|OUTPUT|STATE|STEP_SUMMARY)"
)
T = TypeVar("T")


class Message(Protocol):
    """A model, as pydantic has it."""

    def model_dump_json(self) -> str: ...


@dataclass(frozen=True)
class Ending:
    """How a child came to its end.

    code: as `subprocess` has it; None for a child that wrote what is not a message. problem: what is wrong
    with that.
    """

    code: int | None
    problem: str = ""

    @property
    def cause(self) -> Literal["signal", "exit_code", "exception"]:
        if self.code is None:
            return "exception"
        return "signal" if self.code < 0 else "exit_code"

    @property
    def name(self) -> str:
        """Return the name of the signal, the exit status, or the problem."""
        if self.code is None:
            return self.problem
        if self.code >= 0:
            return f"exit status {self.code}"
        with suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"signal {-self.code}"  # of the real-time signals two have a name

    def __str__(self) -> str:
        match self.cause:
            case "signal":
                return f"ended by {self.name}"
            case "exit_code":
                return f"ended with {self.name} before it was done"
            case _:
                return "wrote on the harness's own line what is no message"


@dataclass
class Child:
    """A child as its parent sees it; a context manager that ends it."""

    process: KeptProcess | subprocess.Popen[bytes]
    line: Line
    started: float  # on the machine's monotonic clock
    stopped: bool = False
    pumped: bool = False  # whether something else reads the output to its end, and closes it

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lost_keeper(self) -> bool:
        """Return True if the child, or something else, killed the child's keeper."""
        return isinstance(self.process, KeptProcess) and self.process.lost_keeper

    @property
    def output(self) -> IO[bytes]:
        """Return the read end of what a kept child prints."""
        return cast("IO[bytes]", self.process.stdout)

    def send(self, message: Message) -> None:
        """Send a model. It is lost if the child ends before it reads it."""
        self.line.send(message.model_dump_json())

    def receive(self, read: Callable[[str], T], timeout: float | None = None) -> T | Ending | None:
        """Return the child's next message or its end; None if neither comes within `timeout` seconds.

        read: turns a line into a message. It raises ValueError, as pydantic does, if the line is not one.
        timeout: None waits without limit.
        """
        until = math.inf if timeout is None else monotonic() + timeout
        while True:
            ended = self.poll()  # first: whatever a child sent before its end is on the line then
            try:
                said = self.line.receive(max(0.0, min(LOOK_S, until - monotonic())))
                if said is not None and not self.line.ended:
                    return read(said)
            except ValueError as problem:
                return Ending(None, str(problem))
            if ended is not None or monotonic() >= until:
                return ended
            if self.line.ended:  # the child's own end is near
                return self.wait(None if timeout is None else until - monotonic())

    def poll(self) -> Ending | None:
        """Return how the child ended; None while it runs."""
        code = self.process.poll()
        return None if code is None else Ending(code)

    def wait(self, timeout: float | None = None) -> Ending | None:
        """Wait for the end of the child; None where it still runs after `timeout` seconds."""
        with suppress(subprocess.TimeoutExpired):
            return Ending(self.process.wait(timeout))
        return self.poll()

    def ended(self) -> Ending:
        """Wait for the end of the child, however long that takes."""
        return Ending(self.process.wait())

    def stop(self) -> None:
        """Stop the child (SIGSTOP); if it is kept, stop its whole process group."""
        self._signal(signal.SIGSTOP)
        self.stopped = True

    def resume(self) -> None:
        """Let the child continue (SIGCONT)."""
        self._signal(signal.SIGCONT)
        self.stopped = False

    def _signal(self, number: int) -> None:
        if isinstance(self.process, KeptProcess):
            self.process.signal_group(number)
        else:
            self.process.send_signal(number)

    def terminate(self, grace_s: float = 0.0) -> None:
        """Send SIGTERM, on which a child writes its stack, and wait `grace_s` seconds for its end."""
        self.process.terminate()
        self.wait(grace_s)

    def close(self, grace_s: float = 0.0) -> None:
        """End the child; if it is kept, end every process that came of it too.

        grace_s: seconds for the child to end by itself, once its line is closed.
        """
        if grace_s:
            self.line.close()
            self.wait(grace_s)
        self.process.kill()
        self.process.wait()
        self.line.close()
        if isinstance(self.process, KeptProcess) and not self.pumped:
            self.output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def start_child(
    module: str, *arguments: str, kept: bool = False, variables: Mapping[str, str] = MappingProxyType({})
) -> Child:
    """Start `python -m module` with a line to it on its standard input.

    The child finds the modules that this process finds, once it has taken its standard input
    (`use_given_path`), and has no variable by which a CI system obeys (`without_ci`).

    kept: the child leads a session under a keeper, and its output is read here. Other children share
    this process's group and streams: what stops or ends the group stops or ends them. variables:
    environment variables, in addition to this process's.
    """
    line, theirs = pair()
    started = monotonic()
    command, inherited = [*child_command(module), *arguments], without_ci(os.environ)
    process: KeptProcess | subprocess.Popen[bytes]
    with theirs:
        if kept:
            process = KeptProcess(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**inherited, **path_of_child(child_path()), "PYTHONHASHSEED": "0", **variables},
            )
        else:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), env={**inherited, **path_of_child(None), **variables}
            )
    return Child(process, line, started)


def without_ci(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables but for those by which code could command a CI job, or act in its name."""
    return {name: value for name, value in environment.items() if not _OF_CI.fullmatch(name)}


def child_command(module: str) -> list[str]:
    """Return the command that starts `module`. Python does not search the working directory first."""
    return [sys.executable, "-P", "-m", module]
