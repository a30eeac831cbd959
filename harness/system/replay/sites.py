"""Find where a step calls each operator: the line of user code, the nn.Module, and the pass (forward or backward).

In a backward pass, autograd calls torch's own backward operators, and no line of user code calls them. Such an operator
gets the line and the module of its forward operator. Autograd gives both operators the same sequence number.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from _thread import get_ident
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.autograd import graph

from harness.evidence.modules import is_harness, is_users
from harness.system.users_code import innermost_frame, own_frame_of_stack, relative

_TORCH = str(Path(torch.__file__).parent)
_PLANTED = "harness/system/wrappers.py"
_STANDARD_LIBRARY = str(Path(traceback.__file__).parent)


class Place(NamedTuple):
    """A line of code. `file` is relative to the import root, so that evidence does not contain a machine's paths."""

    file: str
    line: int


def innermost(frames: Iterable[tuple[str, int]]) -> Place:
    """Return the last of `frames` in user code, a library or a planted fault. frames: (file, line), outermost first.

    If there is no such frame, return a `Place` with the file `?` and the line 0.
    """
    known = list(frames)
    for file, line in reversed(known):
        if is_users_or_library(file):
            return Place(relative(file), line)
    return Place("?", 0)


def of_traceback(trace: TracebackType | None) -> Place:
    """Return the innermost line of user code, a library or a planted fault in the traceback of an exception."""
    return innermost((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace))


def of_current_stack() -> Place:
    """Return the innermost line of user code, a library or a planted fault that is executing now."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe(1))]
    return innermost(reversed(frames))


@cache
def is_own(file: str) -> bool:
    """Return True for a file of user code. Return False for files of installed packages and of planted faults."""
    return is_users_or_library(file) and not file.endswith(_PLANTED) and is_users(Path(file))


@cache
def is_users_or_library(file: str) -> bool:
    """Return True for a file of user code, of a library (except torch), or of a planted fault."""
    return not _is_machinery(file) or file.endswith(_PLANTED)


def _is_machinery(file: str) -> bool:
    # Relative file names come from the profiler, and torch.compile generates files. Both count as torch's own code
    # here.
    if file.startswith((_TORCH, "<", "torch/", "harness/")) or "/torchinductor_" in file or is_harness(Path(file)):
        return True
    if not file.startswith("/"):
        return Path(file).parts[0].removesuffix(".py") in sys.stdlib_module_names
    # The folder of the standard library may contain installed packages. They do not belong to the standard library.
    return file.startswith(_STANDARD_LIBRARY) and not {"site-packages", "dist-packages"} & set(Path(file).parts)


def asked_at() -> str:
    """Return the line that `of_current_stack` returns, as text. If this line is in a library, add the line of user code
    that called the library."""
    place, frame = of_current_stack(), own_frame_of_stack()
    if frame is None or (relative(frame.file), frame.line) == place:
        return f"{place.file}:{place.line}"
    return f"{place.file}:{place.line}, called at {frame}"


def made_to_wait(error: BaseException) -> str:
    """Return advice on how to keep an optimizer's update from reading values on the host. Return "" if no update of an
    optimizer raised the error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    updates = [
        number for number, each in enumerate(frames) if isinstance(each.f_locals.get("self"), torch.optim.Optimizer)
    ]
    # If the update called user code, such as a closure, the user code caused the wait and not the optimizer.
    if not updates or any(is_users_or_library(each.f_code.co_filename) for each in frames[updates[-1] + 1 :]):
        return ""
    optimizer = frames[updates[-1]].f_locals["self"]
    name, defaults = type(optimizer).__name__, getattr(optimizer, "defaults", {})
    groups = getattr(optimizer, "param_groups", [])  # the list is missing while the optimizer's constructor runs
    numbers = all(each.is_floating_point() for group in groups for each in group["params"])
    flags = ("fused", "capturable") if numbers else ("capturable",)  # torch has no fused update for complex numbers
    able = [f"`{flag}=True`" for flag in flags if not defaults.get(flag, True)]
    if able:
        return f"; make {name} with {able[0]}"
    return (
        f"; {name} always reads values on the host, so it cannot be captured; train with another optimizer, or "
        "claim no capture"
    )


def called_at(error: BaseException) -> str:
    """Return a text to append to the place that `of_traceback` returns. The text is the function and the code of this
    line or, if the place is in a library, the line of user code that called the library."""
    frame, place = innermost_frame(error), of_traceback(error.__traceback__)
    if frame is None:
        return ""
    if (relative(frame.file), frame.line) == place:
        return f",{str(frame).removeprefix(f'{place.file}:{place.line}')}"
    return f", called at {frame}"


FORWARD: Literal["forward"] = "forward"
BACKWARD: Literal["backward"] = "backward"
BETWEEN: Literal["between"] = "between"
_CALLS_MODULE: CodeType = nn.Module._call_impl.__code__
_RUNS_BACKWARD: CodeType = graph._engine_run_backward.__code__
# Largest number of autograd nodes of one operator. If there are more new nodes, another thread created some of them.
_MOST_NODES = 64
_QUOTED = 100  # largest number of characters of a quoted line


class Site(NamedTuple):
    """The place where an operator was called. module: the path of the nn.Module; "" outside of modules."""

    phase: Literal["between", "forward", "backward"]
    module: str
    line: str  # file name and line number, `file:line`; "" if only code of the harness and of torch made the call
    code: str  # the name of the function that contains the line, and the text of the line


class SiteFinder:
    """Finds the site of the operator that is being called. names: the path of each nn.Module, by `id(module)`."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        # sequence number of an autograd node -> the site of the node's forward operator
        self._of_node: dict[int, Site] = {}
        # thread -> the sequence number of the thread's next node; each thread numbers its own nodes
        self._next_node = {get_ident(): _next_node()}

    def find(self, caller: FrameType | None = None) -> Site:
        """Return the site of the operator that is being called. caller: the innermost frame to examine (default: the
        frame that called `find`)."""
        begin = sys._getframe(1) if caller is None else caller
        in_backward = torch._C._current_graph_task_id() != -1
        own, library, modules = _walked(begin, stops=in_backward)
        if in_backward and own is None and library is None:
            node = torch._C._current_autograd_node()
            forward = None if node is None else self._of_node.get(node._sequence_nr())
            if forward is not None:
                return forward._replace(phase=BACKWARD)
            own, library, modules = _walked(begin, stops=False)
        line, code = own or library or ("", "")
        site = Site(BACKWARD if in_backward else FORWARD, self._module(modules), line, code)
        self._note_nodes(site)
        return site

    def _module(self, modules: list[nn.Module]) -> str:
        return next((self._names[id(each)] for each in modules if id(each) in self._names), "")

    def _note_nodes(self, site: Site) -> None:
        after, thread = _next_node(), get_ident()
        for number in range(max(self._next_node.get(thread, after), after - _MOST_NODES), after):
            self._of_node[number] = site
        self._next_node[thread] = after


def _next_node() -> int:
    number: int = torch._C._autograd._get_sequence_nr()
    return number


_Line = tuple[str, str]


def _walked(frame: FrameType | None, *, stops: bool) -> tuple[_Line | None, _Line | None, list[nn.Module]]:
    """Walk the stack outwards. Return the innermost line of user code, the innermost library line inside, and modules.

    The library line runs inside the call that the line of user code makes. The modules are those whose call is active,
    the innermost first. stops: True to stop at the frame of a backward pass.
    """
    library: _Line | None = None
    own: _Line | None = None
    modules: list[nn.Module] = []
    while frame is not None and not (stops and frame.f_code is _RUNS_BACKWARD):
        code = frame.f_code
        if code is _CALLS_MODULE:
            modules.append(frame.f_locals["self"])
        elif own is None and is_own(code.co_filename):
            own = _line(code.co_filename, code.co_name, frame.f_lineno)
        elif own is None and library is None and is_users_or_library(code.co_filename):
            library = _line(code.co_filename, code.co_name, frame.f_lineno)
        frame = frame.f_back
    return own, library, modules


@cache
def _line(file: str, function: str, number: int) -> _Line:
    text = linecache.getline(file, number).strip()[:_QUOTED]
    return f"{relative(file)}:{number}", f"{function}: {text}"


def names_of_modules(outermost: Mapping[str, nn.Module]) -> dict[int, str]:
    """Return each nn.Module's path by `id(module)`. If there are several outermost modules, the path of a module begins
    with the path of its outermost module."""
    found: dict[int, str] = {}
    inner = {id(each) for module in outermost.values() for each in module.modules() if each is not module}
    alone = {path: module for path, module in outermost.items() if id(module) not in inner}
    for path, module in alone.items():
        prefix = f"{path}." if len(alone) > 1 else ""
        for name, each in module.named_modules():
            found.setdefault(id(each), f"{prefix}{name}".rstrip(".") or type(each).__name__)
    return found


_finder: Any = None


@contextmanager
def sites_noted(finder: SiteFinder) -> Iterator[None]:
    """Within the `with` block, make recordings store the site of each operation."""
    global _finder  # noqa: PLW0603
    before, _finder = _finder, finder
    try:
        yield
    finally:
        _finder = before


def site_to_note() -> Site | None:
    """Return the site of the operator that is being recorded; None if sites were not requested."""
    found: Site | None = _finder.find() if _finder is not None else None
    return found
