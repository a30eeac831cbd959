"""`harness report`: the pages of a run directory again; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness import session
from harness.evidence import layout
from harness.rejudge import judged
from harness.standard_streams import print_line


def report(
    run_directory: Annotated[Path, typer.Argument(help="A run directory, or a published one; no archive alone.")],
) -> None:
    """Render report.html, junit.xml and summary.md of a run directory again; of a published one, no junit.xml."""
    print_line(render(run_directory))


def render(directory: Path) -> str:
    """Draw the reports of a run again; the path of the page. Raises UsageError for an archive alone."""
    [bundle], judgement = judged([directory])
    session.write_reports(bundle.place.writable(), judgement.view, junit=not bundle.place.published)
    return str(directory / layout.PAGE)
