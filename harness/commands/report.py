"""`harness report`: the pages of a run directory again; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness import session
from harness.rejudge import judged


def report(run_directory: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Render report.html, junit.xml and summary.md of a run directory again."""
    typer.echo(render(run_directory))


def render(directory: Path) -> str:
    """Draw the reports of a run directory again; the path of the page."""
    _, judgement = judged([directory])
    session.write_reports(directory, judgement.view)
    return str(directory / "report.html")
