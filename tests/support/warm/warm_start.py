"""In the place of `subprocess.Popen`: a Python process that is forked from one that has imported torch (`warm_server`).

The keeper and the worker under it are processes as they are elsewhere, with their own sessions, parents, descriptors
and exit codes; only `exec` and the imports are left out. What an interpreter does at its start (hash seed, addresses,
/proc/PID/environ) is not tried under it. Under another warm process its children are forks of it, as ranks are.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import warm_server

from harness.processes.kept import KEEPER

SERVER = "WARM_SERVER"  # the variable with the server's address
HERE = Path(__file__).parent
PASS_S = 0.01  # between two looks for an end
WARM = ("harness.runners.worker", "harness.runners.rank", "harness.runners.training_part", "harness.system.describing")


def path_of_commands(*more: str | Path) -> str:
    """PYTHONPATH of a command whose workers are to be forks; under the fixture `warm`."""
    return os.pathsep.join(map(str, (HERE / "site", HERE, *more)))


def popen(command: Sequence[str], **options: Any) -> Any:
    """A fork where the command is a Python module of `WARM`, with or without its keeper; else `subprocess.Popen`."""
    kept = command[1:4] == ["-I", "-S", str(KEEPER)]
    inner = command[6:] if kept else command
    if SERVER in os.environ and list(inner[:3]) == [sys.executable, "-P", "-m"] and inner[3] in WARM:
        if kept:
            return Forked(command, **options)
        if warm_server.is_warm():
            return ForkedHere(command, **options)
    return subprocess.Popen(command, **options)


class Subprocess:
    """The module `subprocess` with another `Popen`."""

    Popen = staticmethod(popen)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


class Forked:
    """A keeper with its command, forked by the server; as much of `subprocess.Popen` as `KeptProcess` uses."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: IO[bytes] | int | None = None,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = True,
    ) -> None:
        assert start_new_session
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        ours: list[int] = []  # descriptors that this process needs no longer once they are sent
        if stdout is subprocess.PIPE:
            reads, writes = os.pipe()
            self.stdout = open(reads, "rb")  # noqa: PTH123, SIM115 - as `Popen.stdout`, its owner closes it
            ours.append(writes)
            stdout = writes
        standard = [_number(stdin, 0), _number(stdout, 1)]
        standard.append(standard[1] if stderr is subprocess.STDOUT else _number(stderr, 2))
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(os.environ[SERVER])
        request = {"command": [*command], "env": dict(env), "cwd": os.getcwd(), "numbers": [0, 1, 2, *pass_fds]}  # noqa: PTH109
        text = json.dumps(request).encode()
        socket.send_fds(self._server, [len(text).to_bytes(8, "big")], [*standard, *pass_fds])
        self._server.sendall(text)
        for descriptor in ours:
            os.close(descriptor)
        self._answers = self._server.makefile("r")
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the server has taken leave of it."""
        if self.returncode is None:
            self.returncode = int(self._answers.readline() or -signal.SIGKILL)
            self._answers.close()
            self._server.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As `Popen.send_signal`."""
        if self.returncode is None:
            os.kill(self.pid, number)


class ForkedHere:
    """A module forked by this process, which is a warm one itself: a child of its own, as its parts and ranks are."""

    def __init__(self, command: Sequence[str], stdin: int, env: Mapping[str, str] | None = None) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.environ.update(env or {})
            os.dup2(stdin, 0)
            warm_server.become(command)

    def poll(self) -> int | None:
        """As `Popen.poll`."""
        return self._ended(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self._ended(0 if until is None else os.WNOHANG)) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a forked module", timeout or 0.0)
            time.sleep(PASS_S)
        return code

    def send_signal(self, number: int) -> None:
        """As `Popen.send_signal`."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """As `Popen.terminate`."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As `Popen.kill`."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            process, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if process else None
        return self.returncode


def _number(file: IO[bytes] | int | None, inherited: int) -> int:
    if file is None:
        return inherited
    return file if isinstance(file, int) else file.fileno()
