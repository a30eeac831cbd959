"""Decide who may work now: all runs side by side, or one alone while every other process of the session is stopped."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

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
