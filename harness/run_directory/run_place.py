"""That a run directory can be made where its user says, before anything is run for it."""

from __future__ import annotations

from pathlib import Path

from harness.output_paths import temporary_folder
from harness.run_directory.writer import UNFINISHED_NAME


def require_place(final: Path) -> None:
    """Make the folder that the run directory `final` comes into.

    Raises UsageError where that cannot be or lies in another run, and where the name cannot be given there.
    """
    temporary_folder(final, UNFINISHED_NAME).rmdir()
