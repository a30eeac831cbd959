"""Run work of a step on a second stream, which a capture records as a parallel branch.

Memory is safe without `record_stream`, which a capture cannot use. Tensors that the second stream reads are held until
the main stream has waited for it. Memory that the second stream allocates is reused only by later work of that stream,
and each piece of that work starts by waiting for all that the main stream has enqueued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Value = TypeVar("Value")


class Beside(Generic[Value]):
    """A value that `make` computes on the second stream once started, else on the main stream when it is taken."""

    def __init__(self, side: torch.cuda.Stream | None, make: Callable[[], Value]) -> None:
        self._side = side
        self._make = make
        self._started: tuple[Value, torch.cuda.Event] | None = None

    def start(self) -> None:
        """Enqueue `make` after the current stream's work; does nothing without a second stream."""
        if self._side is None or self._started is not None:
            return
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            value = self._make()
            self._started = value, self._side.record_event()

    def take(self) -> Value:
        """Return the value; the current stream waits for it. The inputs of `make` may be dropped after this."""
        if self._side is None or self._started is None:
            return self._make()
        value, event = self._started
        torch.cuda.current_stream(self._side.device).wait_event(event)
        return value


class StepStreams:
    """The streams of a step: the caller's alone, or, inside `overlapped`, a second one too.

    Without a capture, work on the second stream costs the host more (events and stream switches, 10 ms a step on an
    H200) than it saves the device. In a capture it costs the host nothing, so only captures overlap.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle_side: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None

    @contextmanager
    def overlapped(self) -> Iterator[None]:
        """Let steps inside the `with` use a second stream, always the same one. Needs CUDA.

        The caller's stream should have a higher priority than 0. A GPU starts the blocks of kernels of equal priority
        in the order of their arrival, so a dequantization of thousands of blocks would delay the small kernels next to
        it.
        """
        if self._idle_side is None:
            self._idle_side = torch.cuda.Stream(self._device, priority=0)  # type: ignore[no-untyped-call]
        self._side = self._idle_side
        try:
            yield
        finally:
            self._side = None

    def beside(self, make: Callable[[], Value]) -> Beside[Value]:
        """Return a value to start on the second stream and to take later."""
        return Beside(self._side, make)

    def branch(self, work: Callable[[], None]) -> Beside[None]:
        """Start `work` at once, on the second stream where there is one; `take` must follow."""
        if self._side is None:
            work()
            return Beside(None, lambda: None)
        started = Beside(self._side, work)
        started.start()
        return started
