"""Replace torch's own functions for a block: a capture is seen, compiled code runs as written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from harness.devices.graphs import answering_whether_captured, is_capturing
from harness.system.replay.sites import asked_at


@contextmanager
def standing_in(modules: Sequence[ModuleType | type], name: str, stand_in: Callable[..., Any]) -> Iterator[None]:
    """Put `stand_in` under that name into each module within the block."""
    before = [getattr(module, name) for module in modules]
    try:
        for module in modules:
            setattr(module, name, stand_in)
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            setattr(module, name, original)


@contextmanager
def as_captured() -> Iterator[list[str]]:
    """Make `torch.cuda.is_current_stream_capturing()` true within the block, except for torch; yield who asked.

    A real capture does not need it, and compiled code there may rely on the identity of torch's own function.
    """
    asked: list[str] = []

    def answer() -> bool:
        module = sys._getframe(1).f_globals.get("__name__", "")
        of_torch = module.partition(".")[0] == "torch"
        if not of_torch and (place := asked_at()) not in asked:
            asked.append(place)
        return not of_torch or is_capturing()

    with answering_whether_captured(answer):
        yield asked


@contextmanager
def as_written() -> Iterator[list[str]]:
    """Compile nothing, and run no compiled code, within the block. Yield the lines that called such code."""
    from torch._dynamo import eval_frame

    calls: list[str] = []
    outer = eval_frame._callback_from_stance  # torch's own, or that of a block around this one, which notes calls, too

    def run_eagerly(compiler: Any) -> None:  # asked at each call of compiled code; None and False compile nothing
        outer(compiler)
        if compiler in (None, False):
            return
        place = asked_at()
        place = place if place[0] != "?" else "the step itself"  # called by no line of the user's
        if place not in calls:
            calls.append(place)

    # the stance alone leaves no note, and a step may set a stance of its own
    with torch.compiler.set_stance("force_eager"), standing_in((eval_frame,), "_callback_from_stance", run_eagerly):
        yield calls
