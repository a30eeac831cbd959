"""Turn an exception into what evidence keeps of it: its message, its stack, the obstacle that it names."""

from __future__ import annotations

import traceback

from harness.errors import HarnessError
from harness.evidence.base import Obstacle
from harness.platform.paths import without_folders
from harness.system.protocol import NotAvailable
from harness.system.users_code import innermost_frame, named, notes_of, text_of

_MESSAGE_LIMIT = 4000  # characters
_STACK_LIMIT = 20_000


def message_of(error: BaseException) -> str:
    """Return where in user code an exception came from, its type and its message, in one short text.

    The place comes first, where nothing cuts it off. An error of the harness names its own place.
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
    except BaseException:  # of an untrusted class: it is left out then, and its place is not
        lines = [*traceback.format_tb(error.__traceback__), named(error)]
    return without_folders(_printable("".join(lines)))[-_STACK_LIMIT:]


def obstacle_of(error: NotAvailable) -> Obstacle:
    """Return the obstacle: what the system said that this machine lacks."""
    return Obstacle(reason="not_available", message=_excerpt(text_of(error)))


def _excerpt(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


def _printable(text: str) -> str:
    # lone surrogates (file names, broken decoding) cannot be written as UTF-8
    return text.encode("utf-8", "replace").decode("utf-8")
