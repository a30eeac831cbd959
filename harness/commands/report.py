"""`harness report`: the pages of a run directory again; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness import session
from harness.errors import ExitCode
from harness.evidence import layout
from harness.rejudge import judged, replaced, rewritten, unfit
from harness.standard_streams import print_error, print_line


def report(
    run_directory: Annotated[Path, typer.Argument(help="A run directory, or a published one; no archive alone.")],
) -> None:
    """Render report.html, junit.xml and summary.md of a run directory again; of a published one, no junit.xml."""
    warnings = render(run_directory)
    print_line(str(run_directory / layout.PAGE))
    for warning in warnings:
        print_error(f"WARNING: {warning}")
    raise typer.Exit(ExitCode.ERROR if warnings else ExitCode.HELD)


def render(directory: Path) -> list[str]:
    """Draw the reports of a run again, and seal it anew; what its page warns of.

    A run that is not whole gets pages that say so, and no seal. Raises UsageError for an archive alone.
    """
    [bundle], judgement = judged([directory])
    junit = not bundle.place.published
    if unfit(bundle, judgement, replaced(bundle)) or bundle.seal.missing:
        session.write_reports(bundle.place.writable(), judgement.view, junit=junit)
        return judgement.view.warnings()
    with rewritten(bundle, judgement, replaced(bundle)) as (folder, view):
        session.write_reports(folder, view, junit=junit)
    return []
