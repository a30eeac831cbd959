"""Share the machine: a GPU among all commands of a user, and the working time among the runs of one command."""

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

# Share a GPU among all commands of a user on a machine: several share its memory, or one has it
# alone.
#
# Each command that uses the GPU, or waits for it, locks a file of its own next to the lock file of
# the GPU's UUID. The lock ends with the command's process. Commands are served in the order in
# which they asked.

ALONE = None  # the share of a command that has the GPU to itself
_numbers = itertools.count()


class _Claim(NamedTuple):
    """Another command: when it asked, its share of the memory, if it has that, and what it is."""

    asked: float
    share: float | None
    holds: bool
    who: str


@contextmanager
def gpu_lock(uuid: str, announce: Callable[[str], None], share: float | None = ALONE) -> Iterator[None]:
    """Hold a share of the GPU's memory, or the GPU alone. Call `announce` once with whom it waits for."""
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
    """Hold several GPUs, always taken in one order, so that no two sessions wait for each other."""
    with ExitStack() as held:
        for uuid in sorted(set(uuids)):
            held.enter_context(gpu_lock(uuid, announce, share))
        yield


class GpuTurn:
    """A session's place on its GPUs: first a share of their memory, and from some run on the GPUs alone."""

    def __init__(self, uuids: Iterable[str], announce: Callable[[str], None]) -> None:
        self._uuids, self._announce = [*uuids], announce
        self._stack = ExitStack()
        self.held = self.alone = False

    def take(self, share: float | None) -> bool:
        """Wait for the share, or for the GPUs alone. Return False if the session has as much already."""
        if self.alone or (self.held and share is not ALONE):
            return False
        self.close()  # two that both waited for the other's share would wait for ever
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
    """Yield the claims of other commands that still run, and remove the claims of those that have ended."""
    for file in path.parent.glob(f"{path.stem}.*.claim"):
        if file == own:
            continue
        with suppress(OSError), _locked(file) as lock:
            if lock.take(wait=False):  # its process is no more
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
    """Return the lock's file, in a folder of this user alone. Raises HarnessError if the folder is not."""
    return private_folder() / (re.sub(r"[^0-9A-Za-z-]", "_", uuid) + ".lock")


POLL_S = 0.1


class Stoppable(Protocol):
    """A process, or several, that can be stopped and continued; both may be asked of one that is so already."""

    def stop(self) -> None: ...

    def resume(self) -> None: ...


class Turns:
    """Shared by the threads that supervise workers. Who asks to be alone is served in the order of asking."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._others: list[Stoppable] = []
        self._asking: deque[Stoppable] = deque()
        self._alone: Stoppable | None = None

    @contextmanager
    def present(self, worker: Stoppable, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Keep the worker under way in the block, which begins when none is alone. `check` may raise in the wait."""
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
        """Wait until every other worker is stopped and this one is not. `check` raises to give up.

        A worker that is alone already goes on: it would wait for itself.
        """
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
        """End the worker's time alone. It goes on when no other worker is to be alone."""
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
