"""Make a fork of a warm process act like the requested command, as `exec` and a new interpreter would.

See `warm_server` and `warm_start`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import importlib
import os
import random
import runpy
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

HIGH = 600  # descriptors are moved here before they get their numbers
_known: set[str] = set()  # modules of the server; a fork's own are imported by its children anew
_own_path = list(sys.path)


def is_warm() -> bool:
    """Return True if this process is a fork of a server."""
    return bool(_known)


def know_modules() -> None:
    """Record the modules that are loaded now, which every fork has."""
    _known.update(sys.modules)


def start(request: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Do what `exec` would: set descriptors, environment, folder and signals; then become the command."""
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
    """Write the texts where /proc reads them, over the process's original ones; the server left room for them."""
    bounds = [int(word) for word in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]]
    begin, end = bounds[:2] if what == "command line" else bounds[2:]
    shown = b"\0".join(os.fsencode(text) for text in texts)[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def become(command: Sequence[str]) -> NoReturn:
    """Continue as `python [-P] -m MODULE …`, as after `exec`: close descriptors that are not inheritable."""
    _forget_handlers()  # before the keeper's pipe is closed, which tells that the command is there to get signals
    _show("command line", command)
    for number in _open_descriptors():
        with suppress(OSError):  # the listing's own
            if number > 2 and fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(number)
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
    _open_streams(unbuffered="-u" in command[:2])
    _customize(given)
    module, *arguments = command[command.index("-m") + 1 :]
    sys.argv = [module, *arguments]
    gc.enable()
    _end_with(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _open_streams(*, unbuffered: bool) -> None:
    """Open streams on the current descriptors, because the server's streams remember its own."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, f"__{name}__")
        mode, buffering = ("w" if number else "r"), (1 if number == 2 or (number and unbuffered) else -1)
        stream = open(number, mode, buffering, encoding=before.encoding, errors=before.errors, closefd=False)  # noqa: SIM115
        vars(sys).update({name: stream, f"__{name}__": stream})


def _customize(folders: Sequence[str]) -> None:
    """Import the first `sitecustomize` of the path, as a new interpreter does; it may be an installation's own."""
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
    """Reset signal handlers as `exec` and a new interpreter do: ignored signals stay so, and Python ignores two."""
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
