"""Define the messages between a worker and its child processes, how a process ends, and how it writes its stacks.

This module also manages the folder in a run's directory into which a training system saves checkpoints. Checkpoints are
not evidence: the harness does not read them, and removes them when the run ends.
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

# The following functions end a process that has executed user code. `end_process` ends it immediately. User code may
# have closed the standard streams, or replaced them by objects whose `flush` is missing or raises an error. Even then
# the process must end with the intended exit status. With another status, complete evidence on disk would count as
# incomplete.

_end_threads = threading._shutdown  # type: ignore[attr-defined]
_exit = os._exit  # save the function here, because user code may replace `os._exit`
# names in `sys`; those with `__` are the interpreter's original streams
_STREAMS = ("stdout", "__stdout__", "stderr", "__stderr__")


def end_process(status: int) -> NoReturn:
    """End this process with exit status `status`, without the cleanup of the interpreter. CUDA may crash during that
    cleanup, and the crash would make the evidence invalid."""
    for name in _STREAMS:  # Write out buffered output, if the streams still allow it.
        with suppress(BaseException):
            getattr(sys, name).flush()
    _exit(status)


def end_threads() -> None:
    """Wait for executors and for all threads that are not daemons, as the interpreter does before it ends.

    Python has no public function for this. `multiprocessing` calls the same private function.
    """
    _end_threads()


# A process writes its Python stacks into the directory of its run when it crashes, when it gets SIGTERM, and when the
# process that started it requests the stacks. faulthandler writes the stacks from a signal handler. A process that
# hangs in C code and never returns to Python can therefore still write its stacks.

STACKS = "stack.txt"
STACK_EXCERPT = 8000  # largest number of characters of the stacks that are shown
STACKS_LIMIT = 2**20  # largest size of a file of stacks, in bytes
# `threads.<process id>` is the file into which a process writes the stacks of its threads on request
THREADS = "threads"
# The signal by which the process that started a worker requests the worker's stacks. Other programs do not use it. None
# on macOS.
SHOW: int | None = getattr(signal, "SIGRTMAX", 2) - 2 or None


def leave_stacks(directory: Path) -> None:
    """Set up this process to write its Python stacks into `directory` at a crash, at SIGTERM, or on request."""
    # keep this file open until the process ends, because faulthandler writes to the file from signal handlers
    stacks = (directory / STACKS).open("a", encoding="utf-8")
    faulthandler.enable(stacks)
    # The harness first sends SIGTERM to a process that hangs: faulthandler writes the stacks of the process, and then
    # the signal ends the process.
    faulthandler.register(signal.SIGTERM, stacks, chain=True)
    if SHOW is not None:
        shown = directory / f"{THREADS}.{os.getpid()}"
        # the name contains the process id, because several processes of the run write such files into the same folder
        unnamed = directory / f"new-{shown.name}"
        # Pass `chain`. Otherwise faulthandler's handler changes errno, and a system call that failed just before the
        # signal would raise OSError with errno 0. With `chain`, the signal's earlier handler is called too, and the
        # default handler would end the process. Therefore ignore the signal first.
        faulthandler.unregister(SHOW)  # a forked process has its parent's handler
        signal.signal(SHOW, signal.SIG_IGN)
        faulthandler.register(SHOW, unnamed.open("a", encoding="utf-8"), chain=True)
        # Rename the file only after the signal's handler is installed, because the process that requests stacks may
        # send the signal as soon as the file has its final name.
        unnamed.rename(shown)


class LeftStacks:
    """Reads the stacks that a process writes into a file. Create this object before the process begins: `read` leaves
    out stacks that the file contains at that time, which earlier processes wrote."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STACKS
        self._begin = len(self._bytes())

    def read(self) -> str:
        """Return the stacks that the process wrote at a crash or at SIGTERM, most recent call first."""
        text = self._bytes()[self._begin :].decode("utf-8", "replace")
        return without_folders(text)[:STACK_EXCERPT]

    def _bytes(self) -> bytes:
        with suppress(Damaged):
            return read_bytes(self._path, STACKS_LIMIT)
        return b""


class Job(Record):
    """The input of a process that writes into the folder of a run.

    folder: the bytes of the folder's path as hexadecimal digits, because JSON cannot hold every path as text.
    """

    folder: str

    @property
    def directory(self) -> Path:
        return Path(os.fsdecode(bytes.fromhex(self.folder)))

    def run(self) -> Run:
        """Read the run from `run.json` in the folder, and return it."""
        return Run.model_validate_json((self.directory / layout.RUN).read_bytes())


def name_of(directory: Path) -> str:
    """Return a folder's path in the form of `Job.folder`: the path's bytes in hexadecimal."""
    return os.fsencode(directory.resolve()).hex()


class Answer(Record):
    """The result of a job. failed: the message of the exception that ended the job; None if the job succeeded."""

    failed: str | None = None
    stack: str = ""
    obstacle: Obstacle | None = None

    @classmethod
    def of(cls, error: BaseException, **more: Any) -> Self:
        """Return the answer of a process in which user code raised `error`. more: further fields of the answer."""
        if isinstance(error, NotAvailable):
            return cls(failed=message_of(error), obstacle=obstacle_of(error), **more)
        return cls(failed=message_of(error), stack=stack_of(error), **more)


def leave(line: Line, answer: Answer) -> NoReturn:
    """Send `answer` as the last message of this process, and end the process at once."""
    line.send(answer.model_dump_json())
    end_process(0)


Answered = TypeVar("Answered", bound=Answer)


class ProcessFailed(Exception):  # noqa: N818 - the failure is the system's, not the harness's
    """A child process raised an error, or ended before its job was done. If the child sent its stack, the stack is in a
    note of the exception."""


def answered(child: Child, model: type[Answered], named: str, limit_s: float | None = None) -> Answered:
    """Wait for a child's answer and return it.

    Raises `NotAvailable` if user code in the child raised `NotAvailable`. Raises `ProcessFailed` if the child failed
    for another reason, ended, or took too long. named: the child's name in messages. limit_s: seconds to wait; None if
    only the limits of the run apply.
    """
    answer = child.receive(model.model_validate_json, limit_s)
    if answer is None:
        raise ProcessFailed(f"{named}: its process did not answer within {limit_s:g} s")
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
    """Create the folder for checkpoints in the run's directory. Return a path in this folder for a checkpoint after
    `steps` steps."""
    folder = directory.resolve() / layout.CHECKPOINT
    folder.mkdir(exist_ok=True)
    return folder / f"after-{steps}-steps"


def size_of(path: Path) -> tuple[int, int]:
    """Return the number of files at and below `path`, and their size in bytes. Symbolic links are not counted."""
    found = [path, *(Path(folder, name) for folder, _, names in os.walk(path) for name in names)]
    sizes = [status.st_size for each in found if (status := _status(each)) and stat.S_ISREG(status.st_mode)]
    return len(sizes), sum(sizes)


def remove_checkpoint(directory: Path) -> None:
    """Remove the folder with checkpoints, or whatever user code created at its path. Errors are ignored."""
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
                    inside.chmod(stat.S_IRWXU)  # so that the files in a folder without write permission can be removed
        shutil.rmtree(folder)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
