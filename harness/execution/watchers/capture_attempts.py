"""Count the captures that begin in this process and the replays of these captures. Collect the errors and the operators
of the captures.

A system also reports its captures itself, and a judge compares this report with the counts. `harness.execution.opening`
creates a `CaptureAttempts` object for each arm. The record of an arm's end contains the counts and the captured
operators.
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

# Only the last object in the list counts captures. It belongs to the arm that is being opened or executed now.
_COUNTING: list[CaptureAttempts] = []


class CaptureAttempts:
    """Counts the captures that begin within its `with` block: torch's CUDA graphs, whichever library uses them, and
    traced steps (recorded without a GPU).

    Several objects may be open, but only one of them counts: the object whose `with` block, or whose `working`, was
    entered last.

    errors: for each capture that an exception ended, a sentence with the line of user code, even if user code caught
    the exception. replaying: True while a replay runs. replayed: None, or a list to which each replayed graph or traced
    step is appended. left_out: set this to True to make replays do nothing and return the result of the previous
    replay.
    """

    def __init__(self) -> None:
        self.count = self.replays = 0
        self.replaying = self.left_out = False
        self.replayed: list[Any] | None = None
        # CUDA graph, or step recorded without a GPU -> the last result that it returned
        self._returned = WeakKeyDictionary[Any, object]()
        self.errors: list[str] = []
        self.training: object = None  # the training of the arm
        self.operators: set[str] = set()
        self.draws: list[list[str]] = []  # for each capture: the operators that draw random numbers
        self._capturing: list[OperatorWatch] = []
        # an exception that user code was handling when the last capture began
        self._handled: BaseException | None = None
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
        self._stop_watching()  # user code may have begun a capture without ending it
        self.training = self._handled = None
        _COUNTING.remove(self)
        self._replaced.close()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let this object count the captures in the `with` block, even if another arm was opened later."""
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
            # if the captured code raises an error, torch ends the capture while this error is being handled, so
            # `sys.exception` returns it
            raised = sys.exception()
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
        """Collect the operators of a capture. The operators of a step recorded without a GPU are already known. The
        operators of a CUDA graph are collected from now on, until its capture ends."""
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
    """Return the `CaptureAttempts` of an open arm. Raises LookupError if `training` was not opened by the function
    `opened`."""
    found = next((each for each in _COUNTING if each.training is training), None)
    if found is None:
        raise LookupError(f"no open arm has this training run ({type(training).__name__}); open the arm with `opened`")
    return found
