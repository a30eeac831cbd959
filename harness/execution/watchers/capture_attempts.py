"""Count the captures that begin in this process and their replays, and keep how captures fail and what they hold.

What a system reports of its captures is checked against these counts. `harness.execution.opening` opens every
arm under counts of its own. Every record of an arm's end holds them, and the operators that were captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self
from weakref import WeakKeyDictionary

from harness.devices.graphs import watched_graphs
from harness.errors import HarnessError
from harness.system.replay.captured_step import CaptureFailedError
from harness.system.replay.operations import OperatorWatch
from harness.system.replay.traced import TracedStep

_COUNTING: list[CaptureAttempts] = []  # the last one counts: of the arm that is being opened, or that works


class CaptureAttempts:
    """Counts, within its block, captures that begin: of a CUDA graph by torch, by whichever library, or traced ones.

    Of several blocks that are open the innermost counts, or the one whose `working` was entered last. `errors` has a
    sentence for each capture that an exception ended, caught or not, with the user's line. `replaying` is true
    while a replay runs. `replayed` lists the graphs and recorded steps that were replayed since it was set to a list.
    While `left_out` is true a replay does nothing, and returns what it returned last.
    """

    def __init__(self) -> None:
        self.count = self.replays = 0
        self.replaying = self.left_out = False
        self.replayed: list[Any] | None = None
        self._returned = WeakKeyDictionary[Any, object]()  # by what is replayed
        self.errors: list[str] = []
        self.training: object = None  # the arm's
        self.operators: set[str] = set()
        self.draws: list[list[str]] = []  # of each capture, the operators that draw random numbers
        self._capturing: list[OperatorWatch] = []
        self._handled: BaseException | None = None  # by the code that began the last one
        self._replaced = ExitStack()

    def __enter__(self) -> Self:
        self._replaced.enter_context(watched_graphs(self._begun, self._ended, self._replayed))
        for name, watch in (("record", self._begun), ("replay", self._replayed)):
            method = getattr(TracedStep, name)
            self._replaced.callback(setattr, TracedStep, name, method)
            setattr(TracedStep, name, watch(method))
        _COUNTING.append(self)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop_watching()  # of a capture that was never ended
        self.training = self._handled = None
        _COUNTING.remove(self)
        self._replaced.close()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count what begins in the block, even if another arm was opened later."""
        _COUNTING.append(self)
        try:
            yield
        finally:
            _COUNTING.pop()

    def _begun(self, begin: Callable[..., object]) -> Callable[..., object]:
        def begun(*arguments: object, **keywords: object) -> object:
            if _COUNTING[-1] is not self:
                return begin(*arguments, **keywords)
            self.count += 1
            self._handled = sys.exception()
            returned = self._noting(begin, *arguments, **keywords)
            self._watch(arguments[0] if arguments else None)
            return returned

        return begun

    def _ended(self, end: Callable[..., object]) -> Callable[..., object]:
        def ended(*arguments: object, **keywords: object) -> object:
            self._stop_watching()
            raised = sys.exception()  # by the captured code: a `with` that it leaves ends the capture
            if _COUNTING[-1] is not self:
                return end(*arguments, **keywords)
            if raised is None or raised is self._handled:
                return self._noting(end, *arguments, **keywords)
            self._note(raised)
            return end(*arguments, **keywords)

        return ended

    def _replayed(self, replay: Callable[..., object]) -> Callable[..., object]:
        def replayed(*arguments: object, **keywords: object) -> object:
            if _COUNTING[-1] is not self:
                return replay(*arguments, **keywords)
            self.replays, replayed = self.replays + 1, arguments[0]
            if self.replayed is not None:
                self.replayed.append(replayed)
            if self.left_out:
                return self._returned.get(replayed)
            self.replaying = True
            try:
                self._returned[replayed] = returned = replay(*arguments, **keywords)
            finally:
                self.replaying = False
            return returned

        return replayed

    def _watch(self, begun: object) -> None:
        """Collect the operators of what was recorded, or of a graph from now until its capture ends."""
        if isinstance(begun, TracedStep):
            self.operators |= begun.operators
            self.draws.append(begun.draws)
        else:
            self._capturing.append(OperatorWatch())
            self._capturing[-1].__enter__()  # type: ignore[no-untyped-call]

    def _stop_watching(self) -> None:
        if self._capturing:
            watch = self._capturing.pop()
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.operators |= watch.names
            self.draws.append(watch.draws)

    def _noting(self, call: Callable[..., object], *arguments: object, **keywords: object) -> object:
        try:
            return call(*arguments, **keywords)
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        self.errors.append(str(error if isinstance(error, HarnessError) else CaptureFailedError("the capture", error)))


def attempts_of(training: object) -> CaptureAttempts:
    """Return the count of an open arm's captures. Raises LookupError for a run that `opened` did not open."""
    found = next((each for each in _COUNTING if each.training is training), None)
    if found is None:
        raise LookupError(f"no arm is open whose run is a {type(training).__name__}")
    return found
