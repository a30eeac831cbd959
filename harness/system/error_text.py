"""What a stranger's exception says of itself, asked so that it can raise nothing of its own in its place."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Its message."""
    try:
        return str(error)
    except BaseException as another:
        return f"({_kind(another)} when asked for its message)"


def named(error: BaseException) -> str:
    """Type and message."""
    text = text_of(error)
    return f"{_kind(error)}: {text}" if text else _kind(error)


def notes_of(error: BaseException) -> list[str]:
    """What whoever let it pass has added."""
    try:
        return list(map(str, getattr(error, "__notes__", [])))
    except BaseException:
        return []


def _kind(error: BaseException) -> str:
    """The name of its class, also where that has a metaclass that answers otherwise, or not at all."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name
