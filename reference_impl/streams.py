"""Run work of a step on a second stream. A capture records this work as a parallel branch of the graph.

A capture cannot use `record_stream`. Therefore two rules protect memory that both streams use. Tensors that the second
stream reads are kept until the main stream has waited for the second stream. Memory that the second stream allocates is
used again only by later work of the second stream, which first waits for all work enqueued on the main stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Value = TypeVar("Value")


class Beside(Generic[Value]):
    """A value that the function `make` computes. `start` runs `make` on the second stream. If there is no second
    stream, or `start` was not called, `take` runs `make` on the current stream."""

    def __init__(self, side: torch.cuda.Stream | None, make: Callable[[], Value]) -> None:
        self._side = side
        self._make = make
        self._started: tuple[Value, torch.cuda.Event] | None = None

    def start(self) -> None:
        """Run `make` on the second stream, if there is one, after the work of the current stream."""
        if self._side is None or self._started is not None:
            return
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            value = self._make()
            self._started = value, self._side.record_event()

    def take(self) -> Value:
        """Return the value, for which the current stream waits. Afterwards the caller may drop the inputs of `make`."""
        if self._side is None or self._started is None:
            return self._make()
        value, event = self._started
        torch.cuda.current_stream(self._side.device).wait_event(event)
        return value


class StepStreams:
    """The streams of a step: the caller's stream, and inside `overlapped` also a second stream.

    Without a capture, the second stream costs more time on the host than it saves on the device (10 ms for each step on
    an H200). Replays do not need this host time, so only captures use the second stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle_side: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None

    @contextmanager
    def overlapped(self) -> Iterator[None]:
        """Let steps inside the `with` use a second stream, the same one in each `with`. This needs CUDA.

        The caller's stream should have a higher priority than the second stream. If kernels have the same priority, a
        GPU starts their thread blocks in the order of arrival. A dequantization with thousands of blocks would then
        delay the small kernels of the step.
        """
        if self._idle_side is None:
            self._idle_side = torch.cuda.Stream(self._device, priority=0)  # type: ignore[no-untyped-call]
        self._side = self._idle_side
        try:
            yield
        finally:
            self._side = None

    def beside(self, make: Callable[[], Value]) -> Beside[Value]:
        """Return a `Beside` for `make`. Its `start` computes the value early, and its `take` returns it."""
        return Beside(self._side, make)

    def branch(self, work: Callable[[], None]) -> Beside[None]:
        """Start `work` now, on the second stream if there is one. The caller must call `take` of the result later."""
        if self._side is None:
            work()
            return Beside(None, lambda: None)
        started = Beside(self._side, work)
        started.start()
        return started
