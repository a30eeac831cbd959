"""The command line in a plain install, without the packages of the extra `run`, and on Windows if requested.

    python tests/support/plain_install.py [--windows]

Reads lines with a folder and a command line, as JSON, and answers each with exit code, stdout and stderr. Modules that
a plain install lacks are hidden, and what Python has only on POSIX systems is removed.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from typing import Any

NOT_INSTALLED = ("torch", "triton", "cuda", "pynvml", "filelock", "safetensors", "transformers", "peft")
POSIX_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
POSIX_OS = (
    "fork",
    "getgid",
    "getloadavg",
    "getpgid",
    "getsid",
    "getuid",
    "killpg",
    "sched_getaffinity",
    "setsid",
    "sysconf",  # numpy asks a Linux for os.uname, which stays
)
POSIX_SIGNALS = ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "pthread_sigmask", "setitimer")


class _Without(DistributionFinder):
    """Find nothing, and prevent later finders from finding the `hidden` modules."""

    def __init__(self, hidden: tuple[str, ...]) -> None:
        self._hidden = hidden

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self._hidden:
            return None
        return PathFinder.find_spec(name, path, target)

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008 - as its base has it
    ) -> Iterable[Distribution]:
        return () if context.name in self._hidden else MetadataPathFinder.find_distributions(context)


def hide(names: tuple[str, ...]) -> None:
    """Make these modules look uninstalled from now on."""
    # the other finders serve frozen and built-in modules, and editable installs
    sys.meta_path = [finder for finder in sys.meta_path if finder is not PathFinder]
    sys.meta_path.append(_Without(names))


def become_windows() -> None:
    """Remove what Python has only on POSIX systems."""
    for name in POSIX_MODULES:
        sys.modules.pop(name, None)
    for owner, names in ((os, POSIX_OS), (signal, POSIX_SIGNALS)):
        for name in names:
            delattr(owner, name)
    hide((*NOT_INSTALLED, *POSIX_MODULES))


def answered(folder: str, arguments: list[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command line in a folder."""
    from harness.cli.application import main as harness

    os.chdir(folder)
    sys.argv, out, err = ["harness", *arguments], io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            harness()
    except SystemExit as left:
        return int(left.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def main() -> None:
    if sys.argv[1:] == ["--windows"]:
        become_windows()
    else:
        hide(NOT_INSTALLED)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answered(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
