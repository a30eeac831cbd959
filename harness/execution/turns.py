"""Let all commands of a user share the GPUs, and let one run of a command use the machine alone for some time."""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from harness.platform.paths import private_folder, unusable

# All commands of a user on a machine share its GPUs: several commands share the memory of a GPU, or one command uses
# the GPU alone. A GPU has a lock file that is named after its UUID. Each command that uses the GPU or waits for it
# creates a file of its own next to this lock file, and locks its own file. The operating system releases this lock when
# the command's process ends. Commands get the GPU in the order of their requests.

ALONE = None  # the value of `share` for a command that uses the GPU alone
_numbers = itertools.count()


class _Claim(NamedTuple):
    """The request of another command for a GPU, as its claim file states it.

    asked: time of the request, on the monotonic clock. share: the share of the GPU's memory, from 0 to 1, or `ALONE`.
    holds: True if the command has its share now, False if it still waits. who: a description of the command.
    """

    asked: float
    share: float | None
    holds: bool
    who: str


@contextmanager
def gpu_lock(uuid: str, announce: Callable[[str], None], share: float | None = ALONE) -> Iterator[None]:
    """Wait for a share of the GPU's memory, or for the whole GPU (`ALONE`), and hold it for the duration of the `with`
    block. announce: called once if this command must wait, with a message that names the commands ahead of it."""
    path = lock_path(uuid)
    who = f"process {os.getpid()} ({' '.join([Path(sys.argv[0]).name, *sys.argv[1:2]])[:80]})"
    own = path.with_suffix(f".{os.getpid()}-{next(_numbers)}.claim")
    asked, announced = time.monotonic(), False
    with _locked(path) as lock:
        lock.take()
        with _locked(own) as claim:
            claim.take()
            try:
                while True:
                    rivals = [each for each in _others(path, own) if each.holds or each.asked < asked]
                    holds = _fits(share, rivals)
                    own.write_text(f"{asked!r} {share!r} {holds} {who}", "utf-8")
                    lock.release()
                    if holds:
                        break
                    if not announced:
                        announce(f"waiting for {uuid} behind {', '.join(each.who for each in sorted(rivals))}")
                        announced = True
                    time.sleep(POLL_S)
                    lock.take()
                yield
            finally:
                own.unlink(missing_ok=True)


@contextmanager
def gpu_locks(uuids: Iterable[str], announce: Callable[[str], None], share: float | None = ALONE) -> Iterator[None]:
    """Hold several GPUs, or a share of each, for the duration of the `with` block (see `gpu_lock`). The GPUs are locked
    in a fixed order, so that two commands cannot wait for each other forever."""
    with ExitStack() as held:
        for uuid in sorted(set(uuids)):
            held.enter_context(gpu_lock(uuid, announce, share))
        yield


class GpuTurn:
    """Holds GPUs for all runs of one command: first a share of their memory, and whole GPUs as soon as a run needs a
    GPU alone."""

    def __init__(self, uuids: Iterable[str], announce: Callable[[str], None]) -> None:
        self._uuids, self._announce = [*uuids], announce
        self._stack = ExitStack()
        self.held = self.alone = False

    def take(self, share: float | None) -> bool:
        """Wait for this share of the GPUs' memory, or for the whole GPUs if `share` is `ALONE`. Return True after the
        wait. Return False at once if this command already holds enough."""
        if self.alone or (self.held and share is not ALONE):
            return False
        # first release the share that this command holds; otherwise two commands could wait for each other forever
        self.close()
        self._stack.enter_context(gpu_locks(self._uuids, self._announce, share))
        self.held, self.alone = True, share is ALONE
        return True

    def close(self) -> None:
        self._stack.close()
        self.held = self.alone = False


def _fits(share: float | None, rivals: list[_Claim]) -> bool:
    if share is ALONE or any(each.share is ALONE for each in rivals):
        return not rivals
    return share + sum(each.share or 0.0 for each in rivals) <= 1


def _others(path: Path, own: Path) -> Iterator[_Claim]:
    """Yield the requests of other commands that still run. Remove the claim files of commands that have ended."""
    for file in path.parent.glob(f"{path.stem}.*.claim"):
        if file == own:
            continue
        with suppress(OSError), _locked(file) as lock:
            if lock.take(wait=False):  # if the lock is free, the process that created this claim file has ended
                file.unlink(missing_ok=True)
                continue
            asked, share, holds, who = file.read_text("utf-8").split(" ", 3)
            yield _Claim(float(asked), None if share == "None" else float(share), holds == "True", who)


class _FileLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise unusable(path, error) from error

    def take(self, *, wait: bool = True) -> bool:
        """Lock the file. Return False if another process has locked it and `wait` is false."""
        import fcntl

        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError as error:
            raise unusable(self._path, error) from error
        return True

    def release(self) -> None:
        import fcntl

        fcntl.flock(self.descriptor, fcntl.LOCK_UN)


@contextmanager
def _locked(path: Path) -> Iterator[_FileLock]:
    lock = _FileLock(path)
    try:
        yield lock
    finally:
        os.close(lock.descriptor)


def lock_path(uuid: str) -> Path:
    """Return the path of a GPU's lock file, in this user's folder. Raises HarnessError if the folder is not private."""
    return private_folder() / (re.sub(r"[^0-9A-Za-z-]", "_", uuid) + ".lock")


POLL_S = 0.1


class Stoppable(Protocol):
    """One or more processes that can be stopped and resumed. To stop a stopped process, or to resume a running process,
    has no effect."""

    def stop(self) -> None: ...

    def resume(self) -> None: ...


class Turns:
    """Lets one worker at a time run alone on the machine, in the order of the workers' requests. All threads of a
    command that supervise workers share one object of this class."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._others: list[Stoppable] = []
        self._asking: deque[Stoppable] = deque()
        self._alone: Stoppable | None = None

    @contextmanager
    def present(self, worker: Stoppable, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wait until no worker is alone or waits to be alone. Then let `worker` run for the duration of the `with`
        block. check: called regularly during the wait; it may raise an error to end the wait."""
        with self._changed:
            self._wait(lambda: self._alone is None and not self._asking, check)
            self._others.append(worker)
            worker.resume()
        try:
            yield
        finally:
            with self._changed:
                self._others.remove(worker)
                self._let_go(worker)

    def alone(self, worker: Stoppable, check: Callable[[], None]) -> None:
        """Wait for the worker's turn, stop all other workers, and let `worker` run. Return at once if `worker` already
        runs alone. check: called regularly during the wait; it may raise an error to end the wait."""
        with self._changed:
            if self._alone is worker:
                return
            self._asking.append(worker)
            worker.stop()
            try:
                self._wait(lambda: self._alone is None and self._asking[0] is worker, check)
            except BaseException:
                self._let_go(worker)
                raise
            self._asking.popleft()
            self._alone = worker
            for other in self._others:
                if other is not worker:
                    other.stop()
            worker.resume()

    def together(self, worker: Stoppable) -> None:
        """Let `worker` be alone no longer. It continues when no other worker is alone or waits to be alone."""
        with self._changed:
            self._let_go(worker)

    def _wait(self, until: Callable[[], bool], check: Callable[[], None]) -> None:
        while not until():
            self._changed.wait(POLL_S)
            check()

    def _let_go(self, worker: Stoppable) -> None:
        if worker in self._asking:
            self._asking.remove(worker)
        if self._alone is worker:
            self._alone = None
            if self._asking and worker in self._others:
                worker.stop()
        if self._alone is None and not self._asking:
            for other in self._others:
                other.resume()
        self._changed.notify_all()
