"""Fork Python processes from one that has imported what they need: `python warm_server.py SOCKET KIND`.

The server runs until its stdin and every lease have ended; a lease is a connection on which no request comes. KIND is a
key of `AHEAD`. A request is a length, a JSON object (command, env, cwd, numbers of the descriptors, whether it has its
own session) and the descriptors. The answer is the process id, and the wait status when the process has ended. A client
may be killed at any time, as tests of killed gates do: a complete request is executed, and the server continues.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import warm_fork
import warm_start

AHEAD = {
    "workers": (
        *("torch", "torch.optim", "torch._dynamo", "torch._inductor.compile_fx"),
        *("harness.execution.probes.paired", "harness.execution.ranks"),
        *("harness.execution.probes.training_part", "harness.processes.child", "harness.processes.keeper"),
    ),
    # and processes that describe systems, and workers whose probe needs no torch
    "commands": (
        *(f"harness.cli.{name}" for name in ("application", "check", "doctor", "drill", "judge", "verify")),
        *(f"harness.{name}" for name in ("api.session", "api.drill", "cli.forecast")),
        *(f"harness.report.{name}" for name in ("html", "junit", "markdown", "charts.plots")),
        *("harness.execution.schedule", "harness.execution.supervisor", "harness.execution.worker"),
        *("harness.processes.keeper", "harness.system.describing", "filelock", "rich.console", "typer._adapters"),
        *("pytest", "harness.pytest_plugin.items", "harness.pytest_plugin.fixtures"),
        *("submitit", "submitit.core.submission", "harness.extras.fleet.gate"),
    ),
}
ROOM = 2**15  # bytes for a fork's command line, and for its environment, where `ps` finds them
LEASE = bytes(8)  # in the place of a request's length


def main() -> None:
    """Import the modules, then fork for each request."""
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
            length, descriptors = _begun(connection)
            if length == LEASE:
                _tell(connection, b"+")
                leases.append(connection)
            elif process := _forked(connection, length, descriptors):
                asking[process] = connection
                _tell(connection, b"%d\n" % process)
            else:
                connection.close()
    shutil.rmtree(address.parent)


def _begun(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the length prefix of a request; it is shorter if the client has gone."""
    with suppress(OSError):
        length, descriptors, _, _ = socket.recv_fds(connection, len(LEASE), 64)
        return length, descriptors
    return b"", []


def _tell(connection: socket.socket, answer: bytes) -> None:
    with suppress(OSError):  # who asked may be no more
        connection.sendall(answer)


def _import_ahead(modules: Sequence[str]) -> None:
    for module in modules:
        with suppress(ModuleNotFoundError):  # a part that another version of a package does not have
            importlib.import_module(module)
    if "harness.report.html" in modules:
        _draw_ahead()
    if "torch._inductor.compile_fx" in modules:
        importlib.import_module("torch._inductor.codecache").torch_key()  # for which it reads torch's own code
    _complete_models()
    for user in warm_start.USERS:
        if user in sys.modules:
            vars(sys.modules[user])["subprocess"] = warm_start.Subprocess()
    for module in warm_start.WARM:
        sys.modules.pop(module, None)  # each fork executes its own as `__main__`
    warm_fork.know_modules()
    gc.collect()
    gc.freeze()


def _complete_models() -> None:
    """Compile the schemas of all models now; otherwise each fork would compile those that it uses."""
    from pydantic import BaseModel

    waiting: list[type[BaseModel]] = BaseModel.__subclasses__()
    while waiting:
        model = waiting.pop()
        if model.__module__.startswith("harness."):
            model.model_rebuild()
        waiting += model.__subclasses__()


def _draw_ahead() -> None:
    """Compile the page's templates and find its font now; otherwise each page would."""
    from harness.report import page
    from harness.report.charts import svg

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
        _tell(connection, b"%d\n" % status)
        connection.close()


def _forked(connection: socket.socket, length: bytes, descriptors: Sequence[int]) -> int:
    """Return the process id of the requested command, or 0 if the request was cut off."""
    text = _rest(connection, length)
    process = os.fork() if text else 0
    if text and process == 0:
        warm_fork.start(json.loads(text), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return process


def _rest(connection: socket.socket, length: bytes) -> bytes:
    """Return the bytes of a request; empty bytes if the request was cut off."""
    if len(length) < len(LEASE):
        return b""
    left, text = int.from_bytes(length, "big"), b""
    with suppress(OSError):
        while left and (part := connection.recv(min(left, 2**16))):
            text, left = text + part, left - len(part)
    return b"" if left else text


if __name__ == "__main__":
    main()
