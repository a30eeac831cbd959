"""Run a command under a keeper. The command and all its descendants end with the process that started the command."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

KEEPER = Path(__file__).with_name("keeper.py")
Stream = IO[bytes] | int | None
TOKEN = "CONTRACT_HARNESS_RUN"  # noqa: S105 - the name of a variable
_PROCESSES = Path("/proc")
RESUMED_S = 0.1  # seconds between two SIGCONT signals to a keeper, because its command may have stopped the keeper


class KeptProcess:
    """A command in its own session, with a keeper (`keeper.py`) between the command and this process.

    `stdin`, `stdout` and `stderr` are passed to the command as in `subprocess.Popen`. If this process or the command
    ends, or if `kill` is called, the keeper ends all descendants of the command. Always call `kill`, even after the
    command has ended. The exit code is as in `subprocess`. If the command kills its keeper, the command is killed, too,
    and its exit code is that of SIGKILL. The constructor raises OSError if the command cannot start.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> None:
        self.returncode: int | None = None
        self.lost_keeper = False  # True: a process outside the harness killed the keeper
        self._lock = threading.Lock()
        self._token = secrets.token_hex(16)  # unique; marks the environment of the command and its descendants
        self._heard = b""
        control, self._control = _pipe()
        self._status, status = _pipe()
        environment = os.environ if env is None else env
        with control, status:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(control.fileno()), str(status.fileno()), *command],
                env={**environment, **lent_name(environment), TOKEN: self._token},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(control.fileno(), status.fileno()),
                start_new_session=True,
            )
        try:
            self.pid = self._started(command)
        except BaseException:
            self.kill()
            raise

    @property
    def stdout(self) -> IO[bytes] | None:
        """Return the read end of the command's output, if `stdout` is `subprocess.PIPE`."""
        return self._keeper.stdout

    def poll(self) -> int | None:
        """Return the exit code; None while the command or one of its descendants runs."""
        self._listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all descendants of the command have ended, and return the command's exit code. Raise
        `subprocess.TimeoutExpired` after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left < 0:
                raise subprocess.TimeoutExpired(str(KEEPER), timeout or 0.0)
            self._listen(left)
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM to the command, but not to its descendants."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def signal_group(self, number: int) -> None:
        """Send a signal to the command's process group."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the command and all its descendants. Return when none of them is left."""
        self._control.close()
        while self.returncode is None:
            # The command may have stopped the keeper with SIGSTOP, so SIGCONT resumes the keeper.
            self._keeper.send_signal(signal.SIGCONT)
            self._listen(RESUMED_S)
        self._status.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.kill()

    def _started(self, command: Sequence[str]) -> int:
        while b"\n" not in self._heard and self.returncode is None:
            self._listen(None)
        what, _, number = self._heard.partition(b"\n")[0].partition(b" ")
        if what == b"errno":
            raise OSError(int(number), os.strerror(int(number)), command[0])
        if what != b"pid":
            raise ChildProcessError(
                f"the process that starts and supervises commands ended before it could start {command[0]}"
            )
        return int(number)

    def _listen(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds for a report of the keeper. If the report has the command's exit code, store the
        exit code."""
        if self.returncode is None and _readable(self._status, timeout):
            with self._lock:
                self._take_note()

    def _take_note(self) -> None:
        if self.returncode is not None or not _readable(self._status, 0.0):
            return  # another thread has already read the report
        heard = os.read(self._status.fileno(), 256)
        self._heard += heard
        _, known, code = self._heard.rpartition(b"code ")
        if known and code.endswith(b"\n"):
            try:
                self._keeper.wait(RESUMED_S)
            except subprocess.TimeoutExpired:  # the keeper has done its work, but was stopped before its exit
                self._keeper.kill()
                self._keeper.wait()
            self.returncode = int(code)
        elif not heard:
            # The keeper was killed before its report. The command died with it, but other descendants may be alive.
            self.lost_keeper = True
            kill_marked(self._token)
            self._keeper.wait()
            self.returncode = -signal.SIGKILL


def _readable(pipe: IO[bytes], timeout: float | None) -> bool:
    """Return True if the pipe has data or was closed within `timeout` seconds (None: no limit)."""
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return bool(poller.poll(None if timeout is None else max(0.0, timeout * 1e3)))


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Return the two ends of a pipe that other processes do not inherit."""
    reads, writes = os.pipe()
    return open(reads, "rb", buffering=0), open(writes, "wb", buffering=0)  # noqa: PTH123


def lent_name(environment: Mapping[str, str]) -> dict[str, str]:
    """Return {} if an environment variable or the system's list of users names the current user. Otherwise return a
    variable `USER` for the command, because `getpass.getuser` fails without a name."""
    if any(environment.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")) or not hasattr(os, "getuid"):
        return {}
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return {"USER": f"user-{os.getuid()}"}
    return {}


# A descendant of a kept process has the token of this kept process in its environment, except if it removed the token.


def kill_marked(token: str) -> list[int]:
    """Kill every process of this user whose environment contains `token`. Return the ids of the killed processes. On a
    machine without /proc, kill nothing and return an empty list."""
    mark = f"{TOKEN}={token}".encode()
    killed: list[int] = []
    for entry in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
        except OSError:
            continue  # the process has ended since the listing, or it belongs to another user
    return killed
