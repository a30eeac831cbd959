"""Forks Python processes of a process that has imported torch: `python warm_server.py SOCKET`, until its stdin ends.

A request is a length, a JSON object (command, env, cwd, numbers of the descriptors) and the descriptors. The answer is
the process id, and its exit code once it has ended. See `warm_start`.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

AHEAD = ("torch", "torch.optim", "torch._dynamo", "harness.runners.paired", "harness.runners.ranks")
HIGH = 600  # descriptors are moved here before they get their numbers
_known: set[str] = set()  # modules of the server; a fork's own are imported by its children anew


def is_warm() -> bool:
    """Whether this process is a fork of a server."""
    return bool(_known)


def main() -> None:
    """Import, then fork for each request."""
    _import_ahead()
    address = Path(sys.argv[1])
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen(64)
    wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.write(1, b"ready\n")
    asking: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listening.fileno(), 0, wakes[0]], [], [])
        if 0 in ready:
            return
        if wakes[0] in ready:
            os.read(wakes[0], 4096)
            _take_leave(asking)
        if listening.fileno() in ready:
            connection, _ = listening.accept()
            process = _serve(connection)
            asking[process] = connection


def _import_ahead() -> None:
    for module in AHEAD:
        importlib.import_module(module)
    import warm_start

    from harness.processes import kept
    from harness.runners import part_elsewhere, ranks

    for user in (kept, part_elsewhere, ranks):
        vars(user)["subprocess"] = warm_start.Subprocess()
    for module in warm_start.WARM:
        sys.modules.pop(module, None)  # each fork executes its own as `__main__`
    _known.update(sys.modules)
    gc.collect()
    gc.freeze()


def _take_leave(asking: dict[int, socket.socket]) -> None:
    while asking:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        connection = asking.pop(process)
        with suppress(OSError):  # who asked may be no more
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        connection.close()


def _serve(connection: socket.socket) -> int:
    length, descriptors, _, _ = socket.recv_fds(connection, 8, 64)
    text = b""
    while len(text) < int.from_bytes(length, "big"):
        text += connection.recv(2**16)
    process = os.fork()
    if process == 0:
        _start(json.loads(text), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(b"%d\n" % process)
    return process


def _start(request: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """As `exec` would: descriptors by their numbers, environment, working directory, no wakeup; then the keeper."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    numbers = request["numbers"]
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH) for descriptor in descriptors]
    for number in _open_descriptors():
        if 2 < number < HIGH:
            _close(number)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    from harness.processes import keeper

    command = request["command"]
    vars(os)["execvp"] = lambda _file, command: become(command)
    sys.argv = command[3:]
    _end_with(keeper.main)


def become(command: Sequence[str]) -> NoReturn:
    """Go on as `python -P -m MODULE …` in the place of an `exec`: what is not inheritable is closed."""
    for number in _open_descriptors():
        with suppress(OSError):  # the listing's own
            if number > 2 and fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(number)
    _forget_handlers()
    for module in set(sys.modules) - _known:
        del sys.modules[module]
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *_own_path]
    importlib.invalidate_caches()
    random.seed()
    threads = os.environ.get("OMP_NUM_THREADS")
    sys.modules["torch"].set_num_threads(int(threads) if threads else len(os.sched_getaffinity(0)))
    module, arguments = command[3], command[4:]
    sys.argv = [module, *arguments]
    gc.enable()
    _end_with(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _end_with(work: Any) -> NoReturn:
    code: Any = 1
    try:
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forget_handlers() -> None:
    """As `exec` and a new interpreter leave them: what was ignored stays so."""
    faulthandler.disable()
    faulthandler.unregister(signal.SIGTERM)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _open_descriptors() -> list[int]:
    return [int(path.name) for path in Path("/dev/fd").iterdir()]


def _close(number: int) -> None:
    with suppress(OSError):
        os.close(number)


_own_path = list(sys.path)

if __name__ == "__main__":
    sys.modules["warm_server"] = sys.modules["__main__"]  # `warm_start` imports it by that name
    main()
