"""Run a command for the harness, and end all its descendants when the command or the harness ends.

The keeper is started as `python -I -S keeper.py CONTROL STATUS COMMAND…`, in its own session. CONTROL is the read end
of a pipe. Only the harness has the write end, so the pipe closes if the harness requests the end or dies. When the pipe
closes, or when the command ends by itself, the keeper kills all descendants of the command, even processes that left
the command's session: on Linux they become children of the keeper when their parents die. The keeper writes lines to
STATUS. It writes `pid NUMBER` when the command runs, or `errno NUMBER` if the command cannot start. When all
descendants have ended, it writes `code NUMBER`. The number is the exit code, or the negative number of the signal that
ended the command.

The keeper imports few modules, and none of the harness, because a worker can start only after its keeper.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # values of linux/prctl.h
LINUX = sys.platform == "linux"
PASS_S = 0.002  # seconds between two searches for descendants that are still alive
# Python ignores these signals. In the command, these signals get the system's default behavior again.
PYTHON_IGNORES = ("SIGPIPE", "SIGXFSZ", "SIGXFZ")


def main() -> None:
    """Start the command, wait until the command or the harness ends, kill all descendants, and report the exit code."""
    control, status, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    wakes = _wake_at_signals()
    if LINUX:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = _start(command, status)
    _let_go_of_all_but(control, status, *wakes)
    _tell(status, "pid", child)
    code = _until_the_end(child, control, wakes[0])
    _tell(status, "code", _end_all(child, code))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wake_at_signals() -> tuple[int, int]:
    """Return both ends of a pipe. A byte is written to the pipe when a signal asks this process to end, and when a
    child of this process ends."""
    wakes = os.pipe()
    for end in wakes:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes[1])
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A signal that this process ignores when it starts stays ignored, also in the command.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    return wakes


def _start(command: list[str], status: int) -> int:
    """Start the command and return its process id. If the command cannot start, report the error and end the keeper."""
    keeper = os.getpid()
    reads, writes = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        _tell(status, "errno", error.errno or 0)
        os._exit(0)
    if child == 0:
        _become(command, keeper, writes)
    os.close(writes)
    problem = os.read(reads, 32)  # the text is empty if `exec` succeeded, because `exec` closes the pipe
    if problem:
        _tell(status, "errno", int(problem))
        os._exit(0)
    return child


def _become(command: list[str], keeper: int, writes: int) -> None:
    try:
        os.setsid()
        if LINUX:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:  # the keeper died before PR_SET_PDEATHSIG was set
                os._exit(1)
        signal.set_wakeup_fd(-1)
        for name in PYTHON_IGNORES:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - no shell: that is the point
    except OSError as error:
        os.write(writes, b"%d" % (error.errno or 0))
    os._exit(127)


def _let_go_of_all_but(*kept: int) -> None:
    """Close all descriptors except `kept`, and replace the keeper's standard streams by /dev/null. Otherwise the keeper
    would hold pipes open after the command has ended."""
    for descriptor in [int(name) for name in os.listdir("/dev/fd")]:  # noqa: PTH208 - pathlib's import takes longer
        if descriptor > 2 and descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the descriptor of the listing itself is already closed
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.close(nothing)


def _tell(status: int, what: str, number: int) -> None:
    try:
        os.write(status, f"{what} {number}\n".encode())
    except OSError:
        return  # the harness has ended, so no process reads the status


def _until_the_end(child: int, control: int, wakes: int) -> int | None:
    """Wait until the command ends and return its exit code. Return None if the harness requests the end or dies first,
    or if a signal asks the keeper to end first."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wakes, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poller.poll()}
        if wakes in ready:
            told = set(os.read(wakes, 512))
            code, _ = _reap(child)
            if code is not None:
                return code
            if told - {signal.SIGCHLD}:
                return None
        if control in ready and not os.read(control, 512):
            return None


def _reap(child: int) -> tuple[int | None, bool]:
    """Reap all children that have ended. Return two values: the exit code of `child` (None if `child` was not among
    them), and True if no children are left."""
    code = None
    while True:
        try:
            process, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, True
        if process == 0:
            return code, False
        if process == child:
            code = os.waitstatus_to_exitcode(ended)


def _end_all(child: int, code: int | None) -> int:
    """Kill all descendants of the command until none is left. Return the command's exit code. code: the exit code, if
    it is already known."""
    groups = {child}
    while True:
        killed = [_kill(group) for group in groups]
        ended, none_left = _reap(child)
        code = ended if ended is not None else code
        if none_left or not any(killed):
            return -signal.SIGKILL if code is None else code
        time.sleep(PASS_S)
        groups = _groups_below(os.getpid()) or {child}


def _kill(group: int) -> bool:
    """Kill a whole process group at once, so that no process in it can fork and escape. Return False if the group
    belongs to another user."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _groups_below(keeper: int) -> set[int]:
    """Return the process groups of the keeper's descendants, without the keeper's own group. Return an empty set
    without /proc."""
    parents: dict[int, int] = {}
    groups: dict[int, int] = {}
    for name in os.listdir("/proc") if LINUX else ():  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                _, parent, group = file.read().rpartition(b")")[2].split()[:3]
        except OSError:
            continue  # the process has ended since the listing
        parents[int(name)], groups[int(name)] = int(parent), int(group)
    below = {keeper}
    grew = True
    while grew:
        found = {process for process, parent in parents.items() if parent in below} - below
        below |= found
        grew = bool(found)
    return {groups[process] for process in below - {keeper}} - {os.getpgid(keeper), 0}


if __name__ == "__main__":
    main()
