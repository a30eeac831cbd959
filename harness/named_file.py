"""A file that a command writes where its user says."""

from __future__ import annotations

from pathlib import Path

from harness.evidence.files import write_text
from harness.output_paths import refuse_within_run, takes_nothing


def write_named(path: Path, text: str) -> None:
    """Write a file, whole or not at all, in a folder that is made.

    Raises UsageError where that cannot be, and where it would lie in a run.
    """
    refuse_within_run(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise takes_nothing(path, error) from error
