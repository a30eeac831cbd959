"""Work beside the main line of a step: on a second stream, which a capture records as a parallel branch.

Memory is safe without `record_stream`, which a capture cannot use: whatever the second stream reads is held until the
main line has waited for it, and whatever it allocates is reused only by its own later work, each piece of which
starts by waiting for all that the main line has enqueued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Value = TypeVar("Value")


class Beside(Generic[Value]):
    """A value that `make` computes beside the main line once started, else in the main line when it is taken."""

    def __init__(self, side: torch.cuda.Stream | None, make: Callable[[], Value]) -> None:
        self._side = side
        self._make = make
        self._started: tuple[Value, torch.cuda.Event] | None = None

    def start(self) -> None:
        """Enqueue it after all that the current stream holds; without a second stream nothing happens."""
        if self._side is None or self._started is not None:
            return
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            value = self._make()
            self._started = value, self._side.record_event()

    def take(self) -> Value:
        """Return the value; the current stream waits for it. What it was made from may be dropped after this."""
        if self._side is None or self._started is None:
            return self._make()
        value, event = self._started
        torch.cuda.current_stream(self._side.device).wait_event(event)
        return value


class StepStreams:
    """The streams of a step: the caller's alone, or, inside `overlapped`, a second one beside it.

    Launched one by one, work beside the main line costs the host more than it saves the device (events, stream
    switches: 10 ms a step on an H200); in a capture it costs nothing, so captures alone overlap.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle_side: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None

    @contextmanager
    def overlapped(self) -> Iterator[None]:
        """Let the steps in the body of a `with` use a second stream, always the same one. Needs CUDA.

        The caller's stream should have a higher priority than 0. A GPU hands out the blocks of equal kernels in the
        order of their arrival, so that a dequantization of thousands of blocks would hold up the small kernels that
        it should run beside.
        """
        if self._idle_side is None:
            self._idle_side = torch.cuda.Stream(self._device, priority=0)  # type: ignore[no-untyped-call]
        self._side = self._idle_side
        try:
            yield
        finally:
            self._side = None

    def beside(self, make: Callable[[], Value]) -> Beside[Value]:
        """Something to start beside the main line and to take later."""
        return Beside(self._side, make)

    def branch(self, work: Callable[[], None]) -> Beside[None]:
        """Start `work` at once, beside the main line where there is a second stream; `take` must follow."""
        if self._side is None:
            work()
            return Beside(None, lambda: None)
        started = Beside(self._side, work)
        started.start()
        return started
