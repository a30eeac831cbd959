"""Start a Python process of the harness, exchange messages with it, and find out how it ended.

A socket on the child's standard input connects parent and child. `Line` is one end of this connection. A message is a
text that ends with a line break, usually a model as JSON. A worker is a child that executes a run. A worker that must
be alone on the machine sends `ALONE` to its supervisor, and later `TOGETHER`, when other runs may continue. The
supervisor answers each of these requests with `GO`. At its end the worker sends `WRITTEN` with the digests of its
files. If a child ends, or sends an invalid message, its parent gets an `Ending` instead of an answer.

At its start, Python executes a `sitecustomize.py` that it finds on its import path. Therefore a child starts with the
import path with which the harness's command was started. An environment variable passes on the folders that the harness
has added to the import path since then.
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
    # In the environment of a child: the import path for the child to use. Later, inside the child: the import path for
    # the child's own children.
    "CONTRACT_HARNESS_PATH"
)
_HARNESS = str(Path(__file__).resolve().parents[2])


def child_path() -> str:
    """Return the PYTHONPATH with which another process finds the same modules as this process."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)


def path_at_start() -> str:
    """Return the PYTHONPATH with which this command of the harness was started. If the harness is not installed, add
    the folder of the harness.

    Folders of installed packages are not added. Python searches PYTHONPATH before its standard library, so an old
    backport among the packages could hide a module of Python.
    """
    of_installed = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lacks = _HARNESS not in map(os.path.realpath, of_installed)
    given = os.environ.get("PYTHONPATH", "")
    return os.environ.get(VARIABLE) or os.pathsep.join(filter(None, (given, _HARNESS if lacks else "")))


def path_of_child(found: str | None) -> Mapping[str, str]:
    """Return the two environment variables that set a child's import path. Python reads `PYTHONPATH` when the child
    starts. `use_given_path` reads the variable that `VARIABLE` names.

    found: the complete import path for the child; None for the PYTHONPATH in the environment of this process.
    """
    return {"PYTHONPATH": path_at_start(), VARIABLE: os.environ.get("PYTHONPATH", "") if found is None else found}


def use_given_path() -> None:
    """Use the import path that the parent chose for this child. Children of this process get this path, too."""
    given, first = os.environ.get(VARIABLE), os.environ.get("PYTHONPATH", "")
    if given:
        os.environ.update({"PYTHONPATH": given, VARIABLE: first})
        sys.path[:] = dict.fromkeys([*given.split(os.pathsep), *sys.path])


# Texts of messages. A worker sends `READY` when it can execute a run. The module's docstring explains the other texts.
READY, ALONE, TOGETHER, GO, WRITTEN = "ready", "alone", "together", "go", "written "
MOST_BYTES = 16 * 2**20  # largest size of a message, in bytes
CHUNK = 2**20
SENDING_S = 1.0  # seconds after which sending fails, if the child does not read
# Bind these two functions here, before a system is imported. Otherwise user code could replace them in their class.
_send, _receive = socket.socket.sendall, socket.socket.recv


class NoMessage(ValueError):  # noqa: N818 - the supervisor decides what this means for the run
    """The other end of the connection sent more than `MOST_BYTES` bytes without a line break."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_BYTES // 2**20} MiB on the harness's own line, without a complete message")


class Line:
    """One end of the connection between parent and child. If the other end is closed, sent messages are lost without an
    error."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()
        self._searched = 0  # number of received bytes that were already searched for a line break
        self.ended = False  # True: the other end is known to be closed

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, text: str) -> None:
        """Send `text` as one line. The text must not contain line breaks."""
        with suppress(OSError):
            _send(self._socket, text.encode() + b"\n")

    def receive(self, timeout: float | None) -> str | None:
        """Return the next message without its line break. Return "" if the other end is closed, and None if no whole
        message arrives within `timeout` seconds.

        timeout: None for no limit. An incomplete message is kept, and a later call completes it. Raise `NoMessage` for
        a message of more than `MOST_BYTES` bytes.
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
        """Return bytes that have arrived; b"" if the other end is closed."""
        try:
            return _receive(self._socket, CHUNK)
        except OSError:
            return b""

    def close(self) -> None:
        self._socket.close()


def pair() -> tuple[Line, socket.socket]:
    """Return the parent's end of a new connection, and the socket that becomes the child's standard input.

    A child that never reads does not block the parent, because sending a message fails after `SENDING_S` seconds.
    """
    ours, theirs = socket.socketpair()
    ours.settimeout(SENDING_S)
    return Line(ours), theirs


def take_standard_input() -> Line:
    """Return the child's end of the connection, which was its standard input. From then on, standard input is an empty
    stream.

    This function also changes the import path, so that the child finds the same modules as its parent. Therefore call
    it after the harness is imported.
    """
    use_given_path()
    line = Line(socket.socket(fileno=os.dup(0)))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line


# Seconds between two checks whether the child is alive. The connection alone does not show that the child has ended,
# because a forked process of the child may keep the child's end open.
LOOK_S = 10.0
# Matches the names of environment variables that contain credentials of a CI job, or the path of a file with commands
# that the CI runner executes later.
_OF_CI = re.compile(
    r"ACTIONS_.*|(GITHUB|GH|CI|BUILDKITE)_(.*_)?(TOKEN|PASSWORD)|GITHUB_(ENV|PATH|OUTPUT|STATE|STEP_SUMMARY)"
)
T = TypeVar("T")


class Message(Protocol):
    """An object that can be sent as JSON, such as a pydantic model."""

    def model_dump_json(self) -> str: ...


@dataclass(frozen=True)
class Ending:
    """The way in which a child ended. code: the return code as in `subprocess`; None if the child sent an invalid
    message.

    problem: what is wrong with the invalid message.
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
        """Return the name of the signal that ended the child, its exit status, or the problem with its message."""
        if self.code is None:
            return self.problem
        if self.code >= 0:
            return f"exit status {self.code}"
        with suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"signal {-self.code}"  # most real-time signals have no name

    def __str__(self) -> str:
        match self.cause:
            case "signal":
                return f"ended by {self.name}"
            case "exit_code":
                return f"ended with {self.name} before its work was done"
            case _:
                return "wrote something that is not a message on the harness's own line"


@dataclass
class Child:
    """A child process, as its parent sees it. As a context manager, it ends the child at the end of the `with`
    block."""

    process: KeptProcess | subprocess.Popen[bytes]
    line: Line
    started: float  # start time on the monotonic clock
    stopped: bool = False
    pumped: bool = False  # True: other code reads the child's output to its end and closes `output`

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lost_keeper(self) -> bool:
        """Return True if another process, such as the child itself, killed the child's keeper."""
        return isinstance(self.process, KeptProcess) and self.process.lost_keeper

    @property
    def output(self) -> IO[bytes]:
        """Return the read end of the pipe that receives the output of a kept child."""
        return cast("IO[bytes]", self.process.stdout)

    def send(self, message: Message) -> None:
        """Send a pydantic model to the child. If the child ends before it reads the message, the message is lost."""
        self.line.send(message.model_dump_json())

    def receive(self, read: Callable[[str], T], timeout: float | None = None) -> T | Ending | None:
        """Return the child's next message, or an `Ending` if the child ended. Return None after `timeout` seconds.

        read: a function that converts the received text to a message, and raises ValueError (such as pydantic's
            ValidationError) for an invalid text.
        timeout: None for no limit.
        """
        until = math.inf if timeout is None else monotonic() + timeout
        while True:
            # Check first whether the child has ended. If it has, all its messages have already arrived.
            ended = self.poll()
            try:
                said = self.line.receive(max(0.0, min(LOOK_S, until - monotonic())))
                if said is not None and not self.line.ended:
                    return read(said)
            except ValueError as problem:
                return Ending(None, str(problem))
            if ended is not None or monotonic() >= until:
                return ended
            if self.line.ended:  # the child closed its end of the line, so it will end soon
                return self.wait(None if timeout is None else until - monotonic())

    def poll(self) -> Ending | None:
        """Return how the child ended; None while it runs."""
        code = self.process.poll()
        return None if code is None else Ending(code)

    def wait(self, timeout: float | None = None) -> Ending | None:
        """Wait for the end of the child; return None if it still runs after `timeout` seconds."""
        with suppress(subprocess.TimeoutExpired):
            return Ending(self.process.wait(timeout))
        return self.poll()

    def ended(self) -> Ending:
        """Wait for the child's end without a time limit. Return how it ended."""
        return Ending(self.process.wait())

    def stop(self) -> None:
        """Stop the child (SIGSTOP). If the child is kept, stop its whole process group."""
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
        """Send SIGTERM and wait up to `grace_s` seconds for the child's end. At SIGTERM the child prints its stack."""
        self.process.terminate()
        self.wait(grace_s)

    def close(self, grace_s: float = 0.0) -> None:
        """End the child. If the child has a keeper, end all its descendants, too.

        grace_s: seconds to wait for the child to end by itself after the connection is closed.
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
    """Start `python -m module` with a connection for messages (`Line`) on its standard input.

    After `take_standard_input`, the child finds the same modules as this process. The child's environment lacks
    variables with which code could command a CI job (`without_ci`).

    kept: True to start the child in its own session under a keeper, and to pipe its output to this process. Without a
        keeper, the child writes to the streams of this process, and is in the process group of this process, so that
        signals to the group reach the child.
    variables: additional environment variables.
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
    """Return `environment` without variables with which code could command a CI job or use its credentials."""
    return {name: value for name, value in environment.items() if not _OF_CI.fullmatch(name)}


def child_command(module: str) -> list[str]:
    """Return the command that starts `module`. The option `-P` keeps the working directory out of the import path."""
    return [sys.executable, "-P", "-m", module]
