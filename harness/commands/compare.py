"""`harness compare`: what changed from one run directory to another; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.rejudge import judged
from harness.report.compare import compare as compare_views
from harness.standard_streams import print_lines


def compare(
    before: Annotated[Path, typer.Argument(help="The earlier run directory, or archive.")],
    after: Annotated[Path, typer.Argument(help="The later run directory, or archive.")],
) -> None:
    """Say what changed between two runs: environment, verdicts, figures beyond noise."""
    print_lines(comparison(before, after))


def comparison(before: Path, after: Path) -> list[str]:
    """What changed from one run directory to another, as lines of text."""
    return compare_views(*(judged([directory])[1].view for directory in (before, after)))
