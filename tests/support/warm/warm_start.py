"""Substitute for `subprocess.Popen`: fork a Python process from one that has imported modules (`warm_server`).

The keeper with its worker, or a command, are real processes, with their own sessions, parents, descriptors, exit codes
and entries in /proc. Only `exec` and the imports are skipped. So what an interpreter does at its start (hash seed,
addresses, locale) is not tested. Children of a warm process, such as ranks, are forks of that process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import warm_fork

from harness.processes.kept import KEEPER

SERVER = "WARM_SERVER"  # the variable with the address of the server whose forks have torch
COMMANDS = "WARM_COMMANDS"  # of the one for commands, and for workers without torch
WORKERS = "WARM_WORKERS"  # of the one for workers that commands start; it has torch
HERE = Path(__file__).parent
PASS_S = 0.01  # between two looks for an end
WARM = (
    *(
        "harness.execution.worker",
        "harness.execution.rank",
        "harness.execution.probes.arm_process",
        "harness.execution.probes.training_part",
        "harness.system.describing",
    ),
    "benchmarks.peer_worker",
)
TORCH = ("reference_impl.offline_compiler",)  # without a keeper
JOB, TASK = "submitit.local._local", "submitit.core._submit"  # of a fleet: its jobs, and below each what it executes
# of `subprocess`
USERS = ("harness.processes.kept", "harness.processes.child", "submitit.local.local")


def path_of_commands(*more: str | Path) -> str:
    """Return PYTHONPATH for a command whose workers are to be forks; used with the fixture `warm`."""
    return os.pathsep.join(map(str, (HERE / "site", HERE, *more)))


def popen(command: Sequence[str], **options: Any) -> Any:
    """Return a fork if a server, or this process, has the command's module ready; otherwise start the command."""
    if _server_of(command):
        return Forked(command, **options)
    if warm_fork.is_warm() and (_module(command) in WARM or _module(command) == TASK):
        return ForkedHere(command, **options)
    return subprocess.Popen(command, **options)


def _is_kept(command: Sequence[str]) -> bool:
    return list(command[1:4]) == ["-I", "-S", str(KEEPER)]


def _module(command: Sequence[str]) -> str:
    """Return the module that the command executes; "" if it is not a module of this Python."""
    inner = [word for word in (command[6:] if _is_kept(command) else command)[:4] if word not in {"-P", "-u"}]
    return inner[2] if inner[:2] == [sys.executable, "-m"] else ""


def _server_of(command: Sequence[str]) -> str:
    """Return the address of the server that can fork the command; "" if none can."""
    module = _module(command)
    if module in {"harness", "pytest", JOB}:
        return os.environ.get(COMMANDS, "")
    if module in TORCH:
        return os.environ.get(SERVER, "")
    if module in WARM and (_is_kept(command) or not warm_fork.is_warm()):  # what a warm process starts is its child
        named = (SERVER, WORKERS, COMMANDS) if warm_fork.is_warm() else (SERVER, COMMANDS)
        return next(filter(None, map(os.environ.get, named)), "")
    return ""


def run(
    command: Sequence[str],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Do the same as `subprocess.run`, with `popen`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(command, **options) as process:
        try:
            printed, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, printed, errors)
    if check:
        done.check_returncode()
    return done


class Subprocess:
    """The module `subprocess` with another `Popen`."""

    Popen = staticmethod(popen)
    run = staticmethod(run)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


class Forked(subprocess.Popen[Any]):
    """A command, or a keeper with its command, forked by a server: an ordinary process except for its parent."""

    def _execute_child(  # in the place of fork and exec
        self,
        args: Sequence[str],
        _executable: object,
        _preexec_fn: object,
        _close_fds: object,
        pass_fds: Sequence[int],
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
        _startupinfo: object,
        _creationflags: object,
        _shell: object,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *more: Any,
    ) -> None:
        given = [number if ours == -1 else ours for number, ours in enumerate((p2cread, c2pwrite, errwrite))]
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(_server_of(args))
        request = {
            "command": [*args],
            "kept": _is_kept(args),
            "session": more[-2],  # start_new_session; process_group is the last
            "env": dict(os.environ if env is None else env),
            "cwd": os.fspath(Path.cwd() if cwd is None else cwd),
            "numbers": [0, 1, 2, *pass_fds],
        }
        text = json.dumps(request).encode()
        socket.send_fds(self._server, [len(text).to_bytes(8, "big")], [*given, *pass_fds])
        self._server.sendall(text)
        self._answers = self._server.makefile("r")
        self.pid = int(self._answers.readline())
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, options: int) -> tuple[int, int]:
        """Do the same as `os.waitpid` for a child: the server has waited for it, or was killed together with it."""
        if options & os.WNOHANG and not select.select([self._server], [], [], 0)[0]:
            return 0, 0
        answer = self._answers.readline()
        self._answers.close()
        self._server.close()
        return self.pid, int(answer or signal.SIGKILL)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        lock: threading.Lock = self._waitpid_lock  # type: ignore[attr-defined]
        if self.returncode is None and lock.acquire(blocking=False):
            try:
                process, status = self._try_wait(os.WNOHANG)
                if process:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                lock.release()
        return self.returncode


class ForkedHere:
    """A module forked by this process, which is itself warm: its own child, like a part or a rank."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        **_unused: object,
    ) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.environ.update(env or {})
            for number, given in enumerate((stdin, stdout, stderr)):
                if given is not None:
                    os.dup2(given if isinstance(given, int) else given.fileno(), number)
            warm_fork.become(command)

    def poll(self) -> int | None:
        """Behave like `Popen.poll`."""
        return self._ended(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Behave like `Popen.wait`."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self._ended(0 if until is None else os.WNOHANG)) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a forked module", timeout or 0.0)
            time.sleep(PASS_S)
        return code

    def send_signal(self, number: int) -> None:
        """Behave like `Popen.send_signal`."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Behave like `Popen.terminate`."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Behave like `Popen.kill`."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            process, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if process else None
        return self.returncode
