"""Announce kernels that are launched without a torch operator, and replace functions of torch within a `with` block.

No dispatch mode sees these kernels. The harness announces Triton's launches for every trainer (`triton_announced`).
Trainers that launch kernels in other ways must call `announced`, otherwise the harness does not see the launches.
Functions of torch are replaced so that a step seems to be captured, or so that compiled code runs uncompiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, Protocol

import torch

from harness.devices.device import has_cuda
from harness.devices.graphs import answering_whether_captured, is_capturing
from harness.system.replay.sites import asked_at

Launch = Callable[[], object]
# The Python module and class with which Triton launches a kernel. The first pair is for a GPU. The second pair is for
# Triton's interpreter on a machine without a GPU.
_TRITON = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))


class LaunchWatch(Protocol):
    """Observes launches of kernels. If several objects are in the list `watches`, only the last one is called for a
    launch."""

    def launched(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], launch: Launch, caller: FrameType
    ) -> object:
        """Call `launch`, read the arguments before and after the call, and return the result of `launch`."""


watches: list[LaunchWatch] = []  # only the last entry is called for a launch
_announcing = False


def is_watched() -> bool:
    """Return True if the harness watches launches and no announced launch is executing now."""
    return bool(watches) and not _announcing


def announced(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], launch: Launch) -> object:
    """Call `launch` so that the last observer in `watches` sees it, and return its result.

    name: the kernel's name.
    args: the kernel's arguments, including its tensors.
    kwargs: settings that also affect the kernel's result.

    A function that launches a kernel calls `announced`. The line that called the launching function counts as the
    launch's line.
    """
    global _announcing  # noqa: PLW0603
    caller = sys._getframe(1).f_back
    if not is_watched() or caller is None:
        return launch()
    _announcing = True
    try:
        return watches[-1].launched(name, args, kwargs, launch, caller)
    finally:
        _announcing = False


@contextmanager
def triton_announced() -> Iterator[None]:
    """Announce each launch of a Triton kernel within the `with` block to the last observer in `watches`."""
    replaced = []
    for module, name in _TRITON:
        # Do not import Triton on a machine without a GPU. A system may have to configure Triton before its import.
        owner = getattr(_imported(module), name, None)
        if owner is not None and "run" in vars(owner):
            replaced.append((owner, owner.run))
            owner.run = _announcing_run(owner.run)
    try:
        yield
    finally:
        for owner, run in replaced:
            owner.run = run


def _imported(module: str) -> object:
    try:
        return import_module(module) if has_cuda() else sys.modules.get(module)
    except Exception:  # Triton is missing or cannot use this driver, so it launches no kernels
        return None


def _announcing_run(run: Callable[..., object]) -> Callable[..., object]:
    def announcing_run(self: Any, *args: Any, **kwargs: Any) -> object:
        def launch() -> object:
            return run(self, *args, **kwargs)

        if kwargs.get("warmup") or not is_watched():
            return launch()
        settings = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        return announced(getattr(self, "__name__", type(self).__name__), args, settings, launch)

    return announcing_run


@contextmanager
def standing_in(modules: Sequence[ModuleType | type], name: str, stand_in: Callable[..., Any]) -> Iterator[None]:
    """Replace the function `name` of each module or class by `stand_in` within the `with` block."""
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
    """Within the `with` block, make `torch.cuda.is_current_stream_capturing()` return True to all callers outside of
    torch.

    Yield a list that gets the lines that call this function. A real capture does not use this context, because compiled
    code may depend on the identity of torch's own function.
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
    """Within the `with` block, compile nothing and run compiled code uncompiled. Yield a list that gets the lines that
    call compiled code."""
    from torch._dynamo import eval_frame

    calls: list[str] = []
    # The callback of torch or, inside another `with as_written()`, the callback of the outer `with` block. The outer
    # callback must note the calls, too.
    outer = eval_frame._callback_from_stance

    # torch calls this function at each call of compiled code. With `compiler` None or False, torch itself would compile
    # nothing.
    def run_eagerly(compiler: Any) -> None:
        outer(compiler)
        if compiler in (None, False):
            return
        place = asked_at()
        place = place if place[0] != "?" else "the step itself"  # no line of user code made this call
        if place not in calls:
            calls.append(place)

    # Setting torch's stance is not enough. The stance does not note the calls, and a step may set another stance.
    with torch.compiler.set_stance("force_eager"), standing_in((eval_frame,), "_callback_from_stance", run_eagerly):
        yield calls
