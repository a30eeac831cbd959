"""`harness compare`: print what changed from one run directory to another; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.api.rejudge import judged
from harness.errors import ExitCode
from harness.platform.standard_streams import print_lines
from harness.report.compare import compare as compare_views


def compare(
    before: Annotated[Path, typer.Argument(help="The earlier run directory, or archive.")],
    after: Annotated[Path, typer.Argument(help="The later run directory, or archive.")],
) -> None:
    """Print what changed between two runs: environment, verdicts, and numbers that differ by more than noise."""
    text, code = comparison(before, after)
    print_lines(text)
    raise typer.Exit(code)


def comparison(before: Path, after: Path) -> tuple[list[str], ExitCode]:
    """Return lines about the differences between two run directories, and the exit code. The exit code is ERROR if one
    of the directories is incomplete or was changed, because the comparison then proves nothing."""
    views = [judged([directory])[1].view for directory in (before, after)]
    return compare_views(*views), ExitCode.ERROR if any(view.doubts() for view in views) else ExitCode.HELD
