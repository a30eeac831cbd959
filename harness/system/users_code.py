"""Find where in user code an object is defined, a value is returned or an error is raised. Messages of errors name this
place.

Also return the parts of an exception that evidence keeps: its message, its stack, and the obstacle that it names.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.errors import HarnessError
from harness.evidence.modules import is_harness, is_installed, is_users
from harness.platform.paths import without_folders
from harness.system.protocol import NotAvailable

if TYPE_CHECKING:
    from harness.evidence.base import Obstacle


def text_of(error: BaseException) -> str:
    """Return the exception's message. Never raise an error, even if the exception's own code fails when it creates the
    message."""
    try:
        return str(error)
    except BaseException as another:
        return f"(its message cannot be read: {_kind(another)})"


def named(error: BaseException) -> str:
    """Return the exception's type and message as one text."""
    text = text_of(error)
    return f"{_kind(error)}: {text}" if text else _kind(error)


def notes_of(error: BaseException) -> list[str]:
    """Return the notes that callers added to the exception."""
    try:
        return list(map(str, getattr(error, "__notes__", [])))
    except BaseException:
        return []


def _kind(error: BaseException) -> str:
    """Return the name of the exception's class. Do not ask the metaclass, whose code may raise an error or return a
    wrong name."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


_SOURCE_LIMIT = 120  # largest number of characters of a quoted line of code


class Frame(NamedTuple):
    """A line of code in a stack, and the function that contains the line."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.line).strip()
        quoted = f" `{source[:_SOURCE_LIMIT]}`" if source else ""
        return f"{relative(self.file)}:{self.line} in {self.function}{quoted}"


def relative(file: str) -> str:
    """Return a file's path relative to the import path. If the file is outside of the import path, return its name.
    Evidence must not contain the folders of a machine."""
    roots = sorted((root for root in {*sys.path, str(Path.cwd())} if root), key=len, reverse=True)
    for root in roots:
        if file.startswith(root.rstrip("/") + "/"):
            return file[len(root.rstrip("/")) + 1 :]
    return Path(file).name


def innermost_frame(error: BaseException) -> Frame | None:
    """Return the innermost frame of an exception that is not in a library. Return None if there is no frame.

    If all frames are in libraries, because the trainer itself is installed, return the innermost frame outside torch
    that code of the harness called directly.
    """
    frames = list(_frames(error))
    own = [frame for frame in frames if _is_own(frame.file)]
    if own:
        return own[-1]
    called = [
        frame
        for before, frame in itertools.pairwise(frames)
        if is_harness(Path(before.file)) and is_installed(Path(frame.file)) and not is_harness(Path(frame.file))
        if f"{os.sep}torch{os.sep}" not in frame.file
    ]
    return called[-1] if called else None


def own_frame_of_stack() -> Frame | None:
    """Return the innermost frame of user code that is executing now; None if there is none."""
    stack = traceback.walk_stack(sys._getframe(1))
    own = ((frame, line) for frame, line in stack if _is_own(frame.f_code.co_filename))
    return next((Frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in own), None)


def _frames(error: BaseException) -> Iterator[Frame]:
    """Yield the frames of an exception, outermost first. The place of a syntax error comes last."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
    if isinstance(error, SyntaxError) and error.filename:
        yield Frame(error.filename, error.lineno or 0, "the module")


def _is_own(file: str) -> bool:
    return not file.startswith("<") and is_users(Path(file))


def definition(thing: Any) -> str:
    """Return `file:line` of the definition of a function, method, callable object or class; "" if it is unknown."""
    try:
        if isinstance(thing, type):
            return f"{relative(inspect.getsourcefile(thing) or '')}:{inspect.getsourcelines(thing)[1]}"
        code = _function(thing).__code__
    except (AttributeError, TypeError, OSError):
        return ""
    return f"{relative(code.co_filename)}:{code.co_firstlineno}"


def return_place(thing: Any) -> str:
    """Return `file:line` of a function's only `return`. With none or several, return `file:line` of its definition.

    If the function returns the result of a function that it imports, as a drafted adapter does, return the place in the
    imported function.
    """
    try:
        function = _function(thing)
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (AttributeError, TypeError, OSError, SyntaxError):
        return definition(thing)
    returns = list(_returns(tree)) if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) else []
    if len(returns) != 1:
        return definition(thing)
    place = f"{relative(function.__code__.co_filename)}:{first + returns[0].lineno - 1}"
    return (return_place(imported) if (imported := _imported(tree, returns[0].value)) else "") or place


def _imported(tree: ast.AST, value: ast.expr | None) -> Any:
    """Return the function that `value` calls, if the function of this tree imports it from a module. Otherwise return
    None."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return None
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    known = {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}
    module, name = known.get(value.func.id, ("", ""))
    return getattr(sys.modules.get(module), name, None)


def attribute_place(kind: type, *names: str) -> str:
    """Return `file:line` where a user's class, or a base class in user code, sets one of `names`. The names are tried
    in order.

    If the class sets none of them, return the place of its definition.
    """
    for name in names:
        for each in kind.__mro__:
            if name in vars(each) and (place := _set_in(each, name)):
                return place
    return definition(kind)


def _set_in(kind: type, name: str) -> str:
    """Return `file:line` where the class body sets the name. Return "" if it does not set the name, or if the class is
    not user code."""
    try:
        file = inspect.getsourcefile(kind) or ""
        lines, first = inspect.getsourcelines(kind)
    except (TypeError, OSError):
        return ""
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    body = tree.body if isinstance(tree, ast.ClassDef) and _is_own(file) else []
    found = [node.lineno for node in body if name in _names_set_by(node)]
    return f"{relative(file)}:{first + found[0] - 1}" if found else ""


def _names_set_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _function(thing: Any) -> Any:
    """Return the Python function that a wrapper, partial application, method or callable object finally calls."""
    thing = inspect.unwrap(thing)
    while isinstance(thing, functools.partial):
        thing = inspect.unwrap(thing.func)
    if not hasattr(thing, "__code__") and not inspect.ismethod(thing):
        thing = getattr(thing, "forward", None) or type(thing).__call__
    return getattr(thing, "__func__", thing)


def _returns(tree: ast.AST) -> Iterator[ast.Return]:
    """Yield the `return` statements of a function. Skip those of functions that are defined inside it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _returns(node)


_MESSAGE_LIMIT = 4000  # largest number of characters of an exception's message in evidence
_STACK_LIMIT = 20_000


def message_of(error: BaseException) -> str:
    """Return a short text with the place in user code where an exception was raised, its type and its message.

    The place comes first, so that it is not cut off. An error of the harness already contains its place.
    """
    if isinstance(error, HarnessError):
        return _excerpt("; ".join([text_of(error), *notes_of(error)]))
    frame = innermost_frame(error)
    said = "; ".join([named(error), *notes_of(error)])
    return _excerpt(f"{frame}: {said}" if frame else said)


def stack_of(error: BaseException) -> str:
    """Return the end of the exception's traceback, without this machine's folders."""
    try:
        lines = traceback.format_exception(error)
    except BaseException:
        # The code of an untrusted exception may fail when the message is read. The stack is then written without the
        # message.
        lines = [*traceback.format_tb(error.__traceback__), named(error)]
    return without_folders(_printable("".join(lines)))[-_STACK_LIMIT:]


def obstacle_of(error: NotAvailable) -> Obstacle:
    """Return the obstacle that the exception reports: what this machine lacks, in the words of the system."""
    # Import here, because the import of pydantic takes longer than all other imports of a process that describes
    # systems.
    from harness.evidence.base import Obstacle

    return Obstacle(reason="not_available", message=_excerpt(text_of(error)))


def _excerpt(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


def _printable(text: str) -> str:
    # Replace lone surrogates. They come from file names or broken decoding, and cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")
