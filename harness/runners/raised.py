"""What evidence keeps of an exception: its message, its stack, the obstacle that it names."""

from __future__ import annotations

import traceback

from harness.errors import HarnessError
from harness.evidence.base import Obstacle
from harness.runners.folders import without_folders
from harness.system.protocol import NotAvailable
from harness.system.users_code import innermost_frame

_MESSAGE_LIMIT = 4000  # characters
_STACK_LIMIT = 20_000


def message_of(error: BaseException) -> str:
    """Where in the user's own code it came to this, type and message, in one short text.

    The place stands first, where nothing cuts it off. An error of the harness names its own.
    """
    if isinstance(error, HarnessError):
        return _excerpt("; ".join([str(error), *_notes(error)]))
    frame = innermost_frame(error)
    return _excerpt(f"{frame}: {_named(error)}" if frame else _named(error))


def _named(error: BaseException) -> str:
    text = str(error)
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return "; ".join([named, *_notes(error)])


def _notes(error: BaseException) -> list[str]:
    """What whoever let it pass has added."""
    return list(map(str, getattr(error, "__notes__", [])))


def stack_of(error: BaseException) -> str:
    """The end of its traceback, without this machine's folders."""
    return without_folders(_printable("".join(traceback.format_exception(error))))[-_STACK_LIMIT:]


def obstacle_of(error: NotAvailable) -> Obstacle:
    """What the system said that this machine lacks."""
    return Obstacle(reason="not_available", message=_excerpt(str(error)))


def _excerpt(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


def _printable(text: str) -> str:
    # lone surrogates (file names, broken decoding) cannot be written as UTF-8
    return text.encode("utf-8", "replace").decode("utf-8")
