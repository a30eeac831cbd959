"""Find where in user code something happened: the innermost frame outside torch and the harness."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch

from harness.evidence.modules import is_harness, is_users
from harness.system.users_code import innermost_frame, own_frame_of_stack, relative

_TORCH = str(Path(torch.__file__).parent)
_PLANTED = "harness/system/wrappers.py"
_STANDARD_LIBRARY = str(Path(traceback.__file__).parent)


class Place(NamedTuple):
    """A line of code. `file` is relative to the import root, so that evidence carries no machine's paths."""

    file: str
    line: int


def innermost(frames: Iterable[tuple[str, int]]) -> Place:
    """Return the last of `frames` (file, line; outermost first) that is user code or a planted fault.

    Returns `?` as the file, and line 0, if there is no such frame.
    """
    known = list(frames)
    for file, line in reversed(known):
        if is_users_or_library(file):
            return Place(relative(file), line)
    return Place("?", 0)


def of_traceback(trace: TracebackType | None) -> Place:
    """Return the place an exception came from."""
    return innermost((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace))


def of_current_stack() -> Place:
    """Return the place that is executing now."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe(1))]
    return innermost(reversed(frames))


@cache
def is_own(file: str) -> bool:
    """Return True for a file of user code that belongs to no installed package."""
    return is_users_or_library(file) and not file.endswith(_PLANTED) and is_users(Path(file))


@cache
def is_users_or_library(file: str) -> bool:
    """Return True for a file of user code, of a library besides torch, or with a planted fault."""
    return not _is_machinery(file) or file.endswith(_PLANTED)


def _is_machinery(file: str) -> bool:
    # the profiler names files relatively; torch.compile writes code of its own
    if file.startswith((_TORCH, "<", "torch/", "harness/")) or "/torchinductor_" in file or is_harness(Path(file)):
        return True
    if not file.startswith("/"):
        return Path(file).parts[0].removesuffix(".py") in sys.stdlib_module_names
    # Installed packages may live below the standard library's folder, and they are user code here.
    return file.startswith(_STANDARD_LIBRARY) and not {"site-packages", "dist-packages"} & set(Path(file).parts)


def asked_at() -> str:
    """Return the line that is executing now and, if it is in a library, the user's line that led there."""
    place, frame = of_current_stack(), own_frame_of_stack()
    if frame is None or (relative(frame.file), frame.line) == place:
        return f"{place.file}:{place.line}"
    return f"{place.file}:{place.line}, called at {frame}"


def made_to_wait(error: BaseException) -> str:
    """Return a text saying how the optimizer whose update raised the exception is made to read nothing; else ""."""
    holders = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    optimizers = [each for each in holders if isinstance(each, torch.optim.Optimizer)]
    if not optimizers:
        return ""
    name, defaults = type(optimizers[-1]).__name__, getattr(optimizers[-1], "defaults", {})
    numbers = all(each.is_floating_point() for group in optimizers[-1].param_groups for each in group["params"])
    flags = ("fused", "capturable") if numbers else ("capturable",)  # torch fuses no update of complex numbers
    able = [f"`{flag}=True`" for flag in flags if not defaults.get(flag, True)]
    return f"; make {name} with {able[0]}" if able else f"; {name} has no form that reads nothing"


def called_at(error: BaseException) -> str:
    """Return what to write after the place an exception came from: its line of code or, if the place is in a library,
    the user's line that led there.
    """
    frame, place = innermost_frame(error), of_traceback(error.__traceback__)
    if frame is None:
        return ""
    if (relative(frame.file), frame.line) == place:
        return f",{str(frame).removeprefix(f'{place.file}:{place.line}')}"
    return f", called at {frame}"
