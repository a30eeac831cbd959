"""Check names of files in a run directory: which ones every system can hold, and how to show an untrusted one."""

from __future__ import annotations

from pathlib import PurePosixPath


def unfit(name: str) -> str | None:
    """Return why no run directory holds a file of this name, a path from its top; None if it may."""
    if not name.isprintable() or "\\" in name or ":" in name:
        return "a name with a control character, a backslash or a colon"
    path = PurePosixPath(name)
    if path.is_absolute():
        return "an absolute path"
    if ".." in path.parts:
        return "a path through `..`"
    if not path.parts and not name.startswith("."):
        return "no name"
    return None


def shown(name: str) -> str:
    """Return an untrusted name for a message: printable, and at most 240 characters."""
    return ascii(name)[1:-1][:240]
