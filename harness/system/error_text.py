"""Ask the exception of untrusted code for its text, so that asking can raise no other exception in its place."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return the exception's message."""
    try:
        return str(error)
    except BaseException as another:
        return f"({_kind(another)} when asked for its message)"


def named(error: BaseException) -> str:
    """Return the exception's type and message."""
    text = text_of(error)
    return f"{_kind(error)}: {text}" if text else _kind(error)


def notes_of(error: BaseException) -> list[str]:
    """Return the notes that callers added to the exception."""
    try:
        return list(map(str, getattr(error, "__notes__", [])))
    except BaseException:
        return []


def _kind(error: BaseException) -> str:
    """Return the name of the exception's class, also where a metaclass answers wrongly, or not at all."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name
