"""How often a capture begins in this process, how those that fail end, and which operators are captured: what a system
says of itself is held against it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Self

import torch

from harness.errors import HarnessError
from harness.system.replay.captured_step import CaptureFailedError
from harness.system.replay.operators import OperatorWatch
from harness.system.replay.traced import TracedStep

_BEGINNINGS: tuple[tuple[Any, str], ...] = ((torch.cuda.CUDAGraph, "capture_begin"), (TracedStep, "record"))
_ENDINGS: tuple[tuple[Any, str], ...] = ((torch.cuda.CUDAGraph, "capture_end"),)


class CaptureAttempts:
    """Within its block, counts captures that begin: of a CUDA graph by torch, by whichever library, or traced ones.

    `errors` has a sentence for each that an exception ended, whoever caught it, with the user's line.
    """

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[str] = []
        self.operators: set[str] = set()
        self._capturing: list[OperatorWatch] = []
        self._handled: BaseException | None = None  # by the code that began the last one
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        for methods, watched in ((_BEGINNINGS, self._begun), (_ENDINGS, self._ended)):
            for owner, name in methods:
                method = getattr(owner, name)
                self._replaced.append((owner, name, method))
                setattr(owner, name, watched(method))
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop_watching()  # of a capture that was never ended
        for owner, name, method in self._replaced:
            setattr(owner, name, method)
        self._replaced.clear()

    def _begun(self, begin: Callable[..., object]) -> Callable[..., object]:
        def begun(*arguments: object, **keywords: object) -> object:
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
            if raised is None or raised is self._handled:
                return self._noting(end, *arguments, **keywords)
            self._note(raised)
            return end(*arguments, **keywords)

        return ended

    def _watch(self, begun: object) -> None:
        """Collect the operators of what was recorded, or of a graph from now until its capture ends."""
        if isinstance(begun, TracedStep):
            self.operators |= begun.operators
        else:
            self._capturing.append(OperatorWatch())
            self._capturing[-1].__enter__()  # type: ignore[no-untyped-call]

    def _stop_watching(self) -> None:
        if self._capturing:
            watch = self._capturing.pop()
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.operators |= watch.names

    def _noting(self, call: Callable[..., object], *arguments: object, **keywords: object) -> object:
        try:
            return call(*arguments, **keywords)
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        self.errors.append(str(error if isinstance(error, HarnessError) else CaptureFailedError("the capture", error)))
