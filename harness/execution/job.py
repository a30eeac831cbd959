"""Define what a process of a run is asked to do, what it answers, and how it ends: its status, and its stacks.

What a run's system saves lies in a folder of the run's directory, but is not evidence: nothing in it is read here, and
it is removed when the run ends.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import stat
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from harness.evidence import layout
from harness.evidence.base import Obstacle, Record
from harness.evidence.files import Damaged, read_bytes
from harness.evidence.plan_records import Run
from harness.platform.paths import without_folders
from harness.processes.child import Child, Ending, Line
from harness.system.protocol import NotAvailable
from harness.system.users_code import message_of, obstacle_of, stack_of

# End a process that has executed a system: at once, and with the status that its evidence has.
#
# A system may close the standard streams, or replace them by objects without `flush`, or with one
# that raises. None of that makes evidence incomplete that is on disk.

_end_threads = threading._shutdown  # type: ignore[attr-defined]
_exit = os._exit  # a system may put something else in its place
_STREAMS = ("stdout", "__stdout__", "stderr", "__stderr__")  # behind what stands there now are the interpreter's own


def end_process(status: int) -> NoReturn:
    """End this process without the interpreter's own end: a crash as CUDA ends must not void what was recorded."""
    for name in _STREAMS:  # what was printed so far goes where it belongs, as far as the streams let it
        with suppress(BaseException):
            getattr(sys, name).flush()
    _exit(status)


def end_threads() -> None:
    """Wait for all threads that are not daemons, and for executors, as an interpreter does before it ends.

    It has no public name; `multiprocessing` ends its processes by the same function.
    """
    _end_threads()


# Leave a process's stacks in its run's directory: at a crash, at SIGTERM, and whenever its
# supervisor asks.
#
# faulthandler writes them from a signal handler, so that a process which never returns to Python
# leaves them, too.

STACKS = "stack.txt"
STACK_EXCERPT = 8000  # characters
STACKS_LIMIT = 2**20  # bytes
THREADS = "threads"  # `threads.<process id>`: what a process shows of its threads when it is asked
# A signal that programs do not use. None where a system has none: macOS.
SHOW: int | None = getattr(signal, "SIGRTMAX", 2) - 2 or None


def leave_stacks(directory: Path) -> None:
    """Let this process write its stacks into `directory` from now on."""
    # open until the process ends: faulthandler writes to them from signal handlers
    stacks = (directory / STACKS).open("a", encoding="utf-8")
    faulthandler.enable(stacks)
    # a process that hangs gets SIGTERM first: it leaves its stack, then the default action ends it
    faulthandler.register(signal.SIGTERM, stacks, chain=True)
    if SHOW is not None:
        shown = directory / f"{THREADS}.{os.getpid()}"
        unnamed = directory / f"new-{shown.name}"  # others of its run begin at the same time
        faulthandler.register(SHOW, unnamed.open("a", encoding="utf-8"))
        unnamed.rename(shown)  # under this name it says that the signal will not end the process


class LeftStacks:
    """The stacks of a process that begins now, in a file that may hold those of an earlier one."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STACKS
        self._begin = len(self._bytes())

    def read(self) -> str:
        """Return the stacks at a crash or at SIGTERM, most recent call first."""
        text = self._bytes()[self._begin :].decode("utf-8", "replace")
        return without_folders(text)[:STACK_EXCERPT]

    def _bytes(self) -> bytes:
        with suppress(Damaged):
            return read_bytes(self._path, STACKS_LIMIT)
        return b""


class Job(Record):
    """A job in a run's folder.

    folder: its path's bytes in hexadecimal; a path need be no text that JSON can hold.
    """

    folder: str

    @property
    def directory(self) -> Path:
        return Path(os.fsdecode(bytes.fromhex(self.folder)))

    def run(self) -> Run:
        """Read the run whose evidence the folder holds."""
        return Run.model_validate_json((self.directory / layout.RUN).read_bytes())


def name_of(directory: Path) -> str:
    """Return a folder's path as `Job.folder` holds it: its bytes in hexadecimal."""
    return os.fsencode(directory.resolve()).hex()


class Answer(Record):
    """What came of a job. failed: an exception's message; None where all was done."""

    failed: str | None = None
    stack: str = ""
    obstacle: Obstacle | None = None

    @classmethod
    def of(cls, error: BaseException, **more: Any) -> Self:
        """Return the answer of a process whose system raised this error."""
        if isinstance(error, NotAvailable):
            return cls(failed=message_of(error), obstacle=obstacle_of(error), **more)
        return cls(failed=message_of(error), stack=stack_of(error), **more)


def leave(line: Line, answer: Answer) -> NoReturn:
    """Send the last answer, and end this process at once."""
    line.send(answer.model_dump_json())
    end_process(0)


Answered = TypeVar("Answered", bound=Answer)


class ProcessFailed(Exception):  # noqa: N818 - what failed is the system's
    """A process raised, or ended, before it was done; its own stack is a note."""


def answered(child: Child, model: type[Answered], named: str, limit_s: float | None = None) -> Answered:
    """Wait for a child's answer. Raises `ProcessFailed`, and NotAvailable as the child's system does.

    named: what the child is, for the message. limit_s: None if the run's limits apply to the child.
    """
    answer = child.receive(model.model_validate_json, limit_s)
    if answer is None:
        raise ProcessFailed(f"{named}: its process took more than {limit_s:g} s")
    if isinstance(answer, Ending):
        raise ProcessFailed(f"{named}: its process {answer}")
    if answer.obstacle is not None:
        raise NotAvailable(answer.obstacle.message)
    if answer.failed is not None:
        failure = ProcessFailed(f"{named}: {answer.failed}")
        if answer.stack:
            failure.add_note(answer.stack)
        raise failure
    return answer


def checkpoint_path(directory: Path, steps: int) -> Path:
    """Return the path at which the run's system saves after `steps` steps, and make the folder that holds it."""
    folder = directory.resolve() / layout.CHECKPOINT
    folder.mkdir(exist_ok=True)
    return folder / f"after-{steps}-steps"


def size_of(path: Path) -> tuple[int, int]:
    """Return the number and the bytes of the files that a system wrote to `path` and below it, without links."""
    found = [path, *(Path(folder, name) for folder, _, names in os.walk(path) for name in names)]
    sizes = [status.st_size for each in found if (status := _status(each)) and stat.S_ISREG(status.st_mode)]
    return len(sizes), sum(sizes)


def remove_checkpoint(directory: Path) -> None:
    """Remove the folder and all that a system put there, or in its place. What this user may not remove stays."""
    folder = directory / layout.CHECKPOINT
    status = _status(folder)
    if status is None:
        return
    with suppress(OSError):
        if not stat.S_ISDIR(status.st_mode):
            folder.unlink()
            return
        folder.chmod(stat.S_IRWXU)
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                if not (inside := Path(parent, name)).is_symlink():
                    inside.chmod(stat.S_IRWXU)  # what is in a folder that nothing may change could not be removed
        shutil.rmtree(folder)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
