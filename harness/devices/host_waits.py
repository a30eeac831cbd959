"""Count the operations of steps that make the host wait for the device: torch's sync warnings and explicit waits.

The caller gives a function `where`, which returns the place of the operation. The harness marks its own work between
two steps, such as creating a batch. No detector counts marked work as part of a step.
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
"""The name of ranges in a profile that do not belong to a step."""
AFTER = "harness.after_the_step"
"""The name of ranges in a profile in which a trainer works after its step."""
_depth = _after = 0


@contextmanager
def after_the_step() -> Iterator[None]:
    """Mark the `with` block as work that a trainer does after its step. Detectors count the operations of this work
    separately from those of the step."""
    global _after  # noqa: PLW0603
    _after += 1
    try:
        with _range(AFTER):
            yield
    finally:
        _after -= 1


def is_after() -> bool:
    """Return True inside a `with` block of `after_the_step`."""
    return _after > 0


@contextmanager
def _range(name: str) -> Iterator[None]:
    """Show the `with` block in a profile as the range `name`. Dispatch modes of torch do not see the operators that
    mark the range."""
    # without an open profile, the range is useless and would make each timed step some microseconds slower
    if not torch._C._autograd._profiler_enabled():
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
    """Within the `with` block, suspend everything that observes a step: dispatch modes of torch, torch's sync warnings,
    and counts of waits. In a profile, the `with` block is the range `OUTSIDE`, which the readers of the profile leave
    out."""
    global _depth  # noqa: PLW0603
    _depth += 1
    try:
        with _disable_current_modes(), _range(OUTSIDE):
            yield
    finally:
        _depth -= 1


class _Waits(Generic[Where]):
    """Counts the waits in steps, by place. One object can be used for several `with` blocks."""

    _seen: Counter[Where]

    def __init__(self, where: Callable[[str], Where]) -> None:
        self._where = where

    def _count(self, operation: str) -> None:
        if _depth == 0:
            self._seen[self._where(operation)] += 1


class SyncWarnings(_Waits[Where]):
    """Within its `with` block, counts torch's warnings about calls that make the host wait for the device. Entering the
    `with` block is as quick as possible, but still takes as long as the call that starts a replay."""

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


# Every Python function of torch that waits for the device calls one of the functions below. It is enough to replace
# these functions to count all waits, no matter how user code imports torch's functions.
_WAITING_CALLS: tuple[tuple[Any, str], ...] = (
    (torch._C, "_cuda_synchronize"),
    (torch._C, "_accelerator_synchronizeDevice"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Event, "synchronize"),
)


class WaitingCalls(_Waits[Where]):
    """Within its `with` block, counts explicit waits for a device, a stream or an event. torch does not warn about such
    waits.

    The replacement of a waiting function is created once and used in all `with` blocks. It is created again only if
    other code has replaced the waiting function in the meantime.
    """

    def __init__(self, where: Callable[[str], Where]) -> None:
        super().__init__(where)
        # name of an operation -> the original function, and the function by which it is replaced
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
