"""A file that a command writes where its user says."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UsageError
from harness.evidence.files import write_text


def write_named(path: Path, text: str) -> None:
    """Write a file, whole or not at all, in a folder that is made; raises UsageError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        rule, got = "a file can be written at the path that is named", str(error.strerror or error)
        raise UsageError(rule, where=str(path), got=got, remedy="name another one") from error
