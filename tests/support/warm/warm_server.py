"""Forks Python processes of one that has imported what they need: `python warm_server.py SOCKET KIND`.

It does so until its stdin and every lease has ended: a connection on which no request comes. KIND: of `AHEAD`. A
request is a length, a JSON object (command, env, cwd, numbers of the descriptors, whether it has a session of its own)
and the descriptors. The answer is the process id, and its wait status once it has ended. See `warm_start`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import random
import runpy
import select
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

AHEAD = {
    "workers": (
        *("torch", "torch.optim", "torch._dynamo", "harness.runners.paired", "harness.runners.ranks"),
        "harness.processes.keeper",
    ),
    # and processes that describe systems, and workers whose probe needs no torch
    "commands": (
        *(f"harness.commands.{name}" for name in ("application", "check", "doctor", "drill", "judge", "verify")),
        *(f"harness.{name}" for name in ("session", "drill.drill", "forecast.recorded", "forecast.estimates")),
        *(f"harness.report.{name}" for name in ("html", "junit", "markdown", "plots")),
        *("harness.runners.schedule", "harness.runners.supervisor", "harness.runners.worker"),
        *("harness.processes.keeper", "harness.system.describing", "filelock", "rich.console", "typer._adapters"),
        *("pytest", "harness.pytest_plugin.items", "harness.pytest_plugin.verifier"),
        *("submitit", "submitit.core.submission", "harness.fleet.gate"),
    ),
}
ROOM = 2**15  # bytes for a fork's command line, and for its environment, where `ps` finds them
LEASE = bytes(8)  # in the place of a request's length
HIGH = 600  # descriptors are moved here before they get their numbers
_known: set[str] = set()  # modules of the server; a fork's own are imported by its children anew


def is_warm() -> bool:
    """Whether this process is a fork of a server."""
    return bool(_known)


def main() -> None:
    """Import, then fork for each request."""
    address = Path(sys.argv[1])
    _import_ahead(AHEAD[sys.argv[2]])
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen(64)
    wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.write(1, b"ready\n")
    asking: dict[int, socket.socket] = {}
    leases: list[int | socket.socket] = [0]
    while leases:
        ready, _, _ = select.select([listening, wakes[0], *leases], [], [])
        leases = [lease for lease in leases if lease not in ready]
        if wakes[0] in ready:
            os.read(wakes[0], 4096)
            _take_leave(asking)
        if listening in ready:
            connection, _ = listening.accept()
            length, descriptors, _, _ = socket.recv_fds(connection, len(LEASE), 64)
            if length == LEASE:
                connection.sendall(b"+")
                leases.append(connection)
            elif length:
                asking[_serve(connection, int.from_bytes(length, "big"), descriptors)] = connection
    shutil.rmtree(address.parent)


def _import_ahead(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    import warm_start

    if "harness.report.html" in modules:
        _draw_ahead()
    for user in warm_start.USERS:
        if user in sys.modules:
            vars(sys.modules[user])["subprocess"] = warm_start.Subprocess()
    for module in warm_start.WARM:
        sys.modules.pop(module, None)  # each fork executes its own as `__main__`
    _known.update(sys.modules)
    gc.collect()
    gc.freeze()


def _draw_ahead() -> None:
    """Each page compiles its templates, and looks for its font."""
    from harness.report import page, svg

    def paint(axes: list[Any]) -> None:
        axes[0].set_title("drawn", loc="left")

    svg.draw(paint, alt="")
    for template in Path(page.__file__).with_name("templates").glob("*.j2"):
        page._environment().get_template(template.name)


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
            connection.sendall(b"%d\n" % status)
        connection.close()


def _serve(connection: socket.socket, length: int, descriptors: Sequence[int]) -> int:
    text = b""
    while len(text) < length:
        text += connection.recv(2**16)
    process = os.fork()
    if process == 0:
        _start(json.loads(text), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(b"%d\n" % process)
    return process


def _start(request: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """As `exec` would: descriptors by their numbers, environment, working directory, no wakeup; then the command."""
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
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    _show("environment", [f"{name}={value}" for name, value in request["env"].items()])
    os.chdir(request["cwd"])
    command = request["command"]
    if not request["kept"]:
        become(command)
    from harness.processes import keeper

    _show("command line", command)
    vars(os)["execvp"] = lambda _file, command: become(command)
    sys.argv = command[3:]
    _end_with(keeper.main)


def _show(what: str, texts: Sequence[str]) -> None:
    """Write it where /proc finds it, over what this process began with: its server has `ROOM` there."""
    bounds = [int(word) for word in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]]
    begin, end = bounds[:2] if what == "command line" else bounds[2:]
    shown = b"\0".join(os.fsencode(text) for text in texts)[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def become(command: Sequence[str]) -> NoReturn:
    """Go on as `python [-P] -m MODULE …` in the place of an `exec`: what is not inheritable is closed."""
    for number in _open_descriptors():
        with suppress(OSError):  # the listing's own
            if number > 2 and fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(number)
    _forget_handlers()
    for module in set(sys.modules) - _known:
        del sys.modules[module]
    given = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    safe = "-P" in command[:2] or "PYTHONSAFEPATH" in os.environ
    sys.path[:] = [*([] if safe else [os.getcwd()]), *given, *_own_path]  # noqa: PTH109
    importlib.invalidate_caches()
    random.seed()
    if "torch" in sys.modules:
        threads = os.environ.get("OMP_NUM_THREADS")
        sys.modules["torch"].set_num_threads(int(threads) if threads else len(os.sched_getaffinity(0)))
    _show("command line", command)
    _open_streams(unbuffered="-u" in command[:2])
    _customize(given)
    module, *arguments = command[command.index("-m") + 1 :]
    sys.argv = [module, *arguments]
    gc.enable()
    _end_with(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _open_streams(*, unbuffered: bool) -> None:
    """Over the descriptors that are there now: those of the server took note of what its own were."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, f"__{name}__")
        mode, buffering = ("w" if number else "r"), (1 if number == 2 or (number and unbuffered) else -1)
        stream = open(number, mode, buffering, encoding=before.encoding, errors=before.errors, closefd=False)  # noqa: SIM115
        vars(sys).update({name: stream, f"__{name}__": stream})


def _customize(folders: Sequence[str]) -> None:
    """As a new interpreter does: the first `sitecustomize` of its path, which may be an installation's own."""
    if any(Path(folder, "sitecustomize.py").exists() for folder in folders):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


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
    """As `exec` and a new interpreter leave them: what was ignored stays so, and Python ignores two."""
    faulthandler.disable()
    faulthandler.unregister(signal.SIGTERM)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _open_descriptors() -> list[int]:
    return [int(path.name) for path in Path("/dev/fd").iterdir()]


def _close(number: int) -> None:
    with suppress(OSError):
        os.close(number)


_own_path = list(sys.path)

if __name__ == "__main__":
    sys.modules["warm_server"] = sys.modules["__main__"]  # `warm_start` imports it by that name
    main()
