"""Try inputs in a forked process. If an input ends this process, the input is reported, and the fuzzing continues.

Each input may use `SECONDS` of processor time, and `BYTES` more memory than the process has at its start.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawValue
from pathlib import Path

from fuzz_mutations import MOST_BYTES
from fuzz_targets import Target

SECONDS, BYTES = 1.0, 200 * 2**20
ENDLESS = 5.0  # processor time for one input, in seconds, after which the system ends the process
Give = Callable[[Callable[[bytes], None]], None]


class Broken(AssertionError):  # noqa: N818 - the name describes the input, not an error of this program
    """A reader broke a rule for this input, such as a limit of time."""


@dataclass(frozen=True)
class Tried:
    """How many inputs were tried, how many were read without an error, what broke, and the last input."""

    tried: int
    read: int
    broken: str | None
    last: bytes


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Limit the process inside the `with` to `BYTES` more memory than it has at the start."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def attempt(target: Target, case: bytes) -> bool:
    """Try one input in this process. Return True if it was read without an error. Raises `Broken` if the target raises
    an error of the wrong type or exceeds a limit."""
    began = time.process_time()
    read = False
    try:
        with _limited_memory():
            target.attempt(case)
        read = True
    except target.typed:
        pass
    except (Exception, SystemExit) as error:
        raise Broken(f"{type(error).__name__}: {str(error)[:200]}") from error
    if (spent := time.process_time() - began) > SECONDS:
        raise Broken(f"the input took {spent:.1f} s of processor time")
    return read


class _Shared(ctypes.Structure):
    """Memory that parent and child process share: the parent can read a dead child's counts, error and last input."""

    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("tried", "read", "ended", "words_length", "case_length")),
        ("words", ctypes.c_ubyte * 2_000),
        ("case", ctypes.c_ubyte * (MOST_BYTES + 2**16)),
    )

    def keep(self, name: str, content: bytes) -> None:
        place = getattr(self, name)
        length = min(len(content), len(place))
        ctypes.memmove(place, content, length)
        setattr(self, f"{name}_length", length)

    def kept(self, name: str) -> bytes:
        return ctypes.string_at(getattr(self, name), getattr(self, f"{name}_length"))


class Child:
    """A forked process that tries each input that `give` passes on, and ends early if `attempt` raises `Broken`."""

    def __init__(self, target: Target, give: Give) -> None:
        self._shared = RawValue(_Shared)
        sys.stdout.flush()
        sys.stderr.flush()
        self._process = os.fork()
        if self._process == 0:
            _work(target, give, self._shared)

    def end(self) -> Tried:
        """Wait until the process ends or dies. Return what it tried and found."""
        _, status = os.waitpid(self._process, 0)
        broken = self._shared.kept("words").decode("utf-8", "replace") or None
        if broken is None and not self._shared.ended:
            ended_by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "an exit"
            broken = f"the process ended by {ended_by}"
        return Tried(self._shared.tried, self._shared.read, broken, self._shared.kept("case"))


def _work(target: Target, give: Give, shared: _Shared) -> None:
    """Try inputs, then exit the process. The function never returns, so the child never runs the parent's code."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]

    def one(case: bytes) -> None:
        shared.keep("case", case)
        shared.tried += 1
        # At this limit, the system ends the process with SIGXCPU, even if a library does not return to Python.
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + ENDLESS), hard))
        try:
            shared.read += attempt(target, case)
        except Broken as broken:
            shared.keep("words", str(broken).encode("utf-8", "backslashreplace"))
            os._exit(0)

    try:
        give(one)
        shared.ended = 1
    finally:
        os._exit(0)
