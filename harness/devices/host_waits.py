"""Count what makes the host wait for the device within steps, by torch's own warnings and by the calls that wait.

`where` names the place of an operation that waits. What the harness does between two steps, such as making a batch,
is marked, and no detector counts it as part of the step.
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
"""The range that a profile shows for what is not of the step."""
AFTER = "harness.after_the_step"
"""The range that a profile shows for what a trainer does after its step."""
_depth = _after = 0


@contextmanager
def after_the_step() -> Iterator[None]:
    """Mark the block as what a trainer does after its step: what watches the step counts its work apart."""
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
    """Show the block in a profile under that name, by operators that no dispatch mode sees."""
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
    """Suspend what watches a step within the block: dispatch modes, torch's sync warnings, counts of waiting calls.

    A profile shows the block as the range `OUTSIDE`; readers of the profile leave the range out.
    """
    global _depth  # noqa: PLW0603
    _depth += 1
    try:
        with _disable_current_modes(), _range(OUTSIDE):
            yield
    finally:
        _depth -= 1


class _Waits(Generic[Where]):
    """Counts by place what waits in steps. A block may follow another."""

    _seen: Counter[Where]

    def __init__(self, where: Callable[[str], Where]) -> None:
        self._where = where

    def _count(self, operation: str) -> None:
        if _depth == 0:
            self._seen[self._where(operation)] += 1


class SyncWarnings(_Waits[Where]):
    """Within its block, counts torch's warnings of synchronizing calls.

    What each block needs is set up with it, and no more: around a replay it costs as much as the replay's own call.
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


# what torch's Python calls go through, wherever a user imported them from
_WAITING_CALLS: tuple[tuple[Any, str], ...] = (
    (torch._C, "_cuda_synchronize"),
    (torch._C, "_accelerator_synchronizeDevice"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Event, "synchronize"),
)


class WaitingCalls(_Waits[Where]):
    """Within its block, counts explicit waits for a device, a stream or an event: torch warns of none of them.

    What stands in for a call is made once for all blocks, unless somebody else has replaced the call.
    """

    def __init__(self, where: Callable[[str], Where]) -> None:
        super().__init__(where)
        self._known: dict[str, tuple[Any, Any]] = {}  # operation -> a call, and what stands in for it
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
