"""Count where steps make the host wait for the device: torch's warnings about syncs, and explicit calls that wait.

The given function `where` returns the place of an operation that waits. The harness's own work between two steps, such
as making a batch, is marked so that no detector counts it as part of the step.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

Where = TypeVar("Where")
OUTSIDE = "harness.outside_of_the_step"
"""The name, in a profile, of ranges that do not belong to a step."""
AFTER = "harness.after_the_step"
"""The name, in a profile, of ranges in which a trainer works after its step."""
_depth = _after = 0


@contextmanager
def after_the_step() -> Iterator[None]:
    """Mark the block as work that a trainer does after its step. Watchers of the step count this work separately."""
    global _after  # noqa: PLW0603
    _after += 1
    try:
        with _range(AFTER):
            yield
    finally:
        _after -= 1


def is_after() -> bool:
    """Return True within a block of `after_the_step`."""
    return _after > 0


@contextmanager
def _range(name: str) -> Iterator[None]:
    """Show the block in a profile as the range `name`. The range's own operators are hidden from dispatch modes."""
    if not torch._C._autograd._profiler_enabled():  # the range would cost each timed step some microseconds
        yield
        return
    shown = torch.profiler.record_function(name)
    with _disable_current_modes():
        shown.__enter__()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        with _disable_current_modes():
            shown.__exit__(None, None, None)


@contextmanager
def not_of_the_step() -> Iterator[None]:
    """Suspend the watchers of a step within the block: dispatch modes, torch's sync warnings, counts of waiting calls.

    In a profile, the block is the range `OUTSIDE`. Readers of the profile leave this range out.
    """
    global _depth  # noqa: PLW0603
    _depth += 1
    try:
        with _disable_current_modes(), _range(OUTSIDE):
            yield
    finally:
        _depth -= 1


class _Waits(Generic[Where]):
    """Counts the waits in steps, by place. One object can be used for several blocks."""

    _seen: Counter[Where]

    def __init__(self, where: Callable[[str], Where]) -> None:
        self._where = where

    def _count(self, operation: str) -> None:
        if _depth == 0:
            self._seen[self._where(operation)] += 1


class SyncWarnings(_Waits[Where]):
    """Within its block, counts torch's warnings about synchronizing calls.

    The setup does as little as possible, because around a replay the setup takes as long as the call of the replay.
    """

    _catching: warnings.catch_warnings[None]
    _before: int

    def __enter__(self) -> Counter[Where]:
        self._seen = Counter()
        self._before = torch.cuda.get_sync_debug_mode()
        self._catching = warnings.catch_warnings()
        self._catching.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._note
        torch.cuda.set_sync_debug_mode("warn")
        return self._seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            torch.cuda.set_sync_debug_mode(self._before)
        finally:
            self._catching.__exit__(kind, error, trace)

    def _note(self, message: Warning | str, *_args: object, **_kwargs: object) -> None:
        if "synchronizing CUDA operation" in str(message):
            self._count("synchronizing CUDA operation")


# Every Python function of torch that waits for the device calls one of the functions below. Replacing these few
# therefore works wherever user code imports torch's functions from.
_WAITING_CALLS: tuple[tuple[Any, str], ...] = (
    (torch._C, "_cuda_synchronize"),
    (torch._C, "_accelerator_synchronizeDevice"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Event, "synchronize"),
)


class WaitingCalls(_Waits[Where]):
    """Within its block, counts explicit waits for a device, a stream or an event, for which torch has no warnings.

    The function that replaces a waiting call is created once and used in all blocks. It is created again if other code
    has replaced the call in the meantime.
    """

    def __init__(self, where: Callable[[str], Where]) -> None:
        super().__init__(where)
        # name of an operation -> the original function, and the replacement for it
        self._known: dict[str, tuple[Any, Any]] = {}
        self._replaced: list[tuple[Any, str, Any]] = []

    def _counted(self, call: Callable[..., object], operation: str) -> Callable[..., object]:
        def wait(*arguments: object, **keywords: object) -> object:
            self._count(operation)
            return call(*arguments, **keywords)

        return wait

    def __enter__(self) -> Counter[Where]:
        self._seen, self._replaced = Counter(), []
        for owner, name in _WAITING_CALLS:
            call = getattr(owner, name, None)
            if call is None:
                continue
            operation = f"{owner.__name__}.{name}"
            known, counted = self._known.get(operation, (None, None))
            if known is not call:
                counted = self._counted(call, operation)
                self._known[operation] = call, counted
            self._replaced.append((owner, name, call))
            setattr(owner, name, counted)
        return self._seen

    def __exit__(self, *_raised: object) -> None:
        for owner, name, call in self._replaced:
            setattr(owner, name, call)
