"""`harness report`: render the pages of run directories again; nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.api import session
from harness.api.copies import refuse_used, write_shared
from harness.api.rejudge import judged, later_drill, replaced, rewritten, shown_together, unfit
from harness.cli.arguments import Out
from harness.errors import ExitCode, UsageError
from harness.evidence import layout
from harness.platform.standard_streams import print_error, print_line, print_workflow_command
from harness.report.github_actions import annotate, append_step_summary
from harness.run_directory.bundle import read_bundle


def report(
    run_directories: Annotated[
        list[Path],
        typer.Argument(help="Run directories, or published ones; with --out also archives, and several on one page."),
    ],
    out: Out = None,
) -> None:
    """Render report.html and summary.md of a run directory again, and junit.xml unless the run is published."""
    if out is not None:
        folder, warnings = out, render_together(run_directories, out)
    elif len(run_directories) > 1:
        name_folder_or_one_run = "name a folder for the pages with --out, or name one run directory"
        raise UsageError(
            "the pages of several runs need a separate folder, which --out names",
            got="no --out",
            remedy=name_folder_or_one_run,
        )
    else:
        [folder] = run_directories
        warnings = render(folder)
        if (drill := later_drill(folder)) is not None:
            print_line(f"the page lacks a later drill; to show both: harness report {folder} {drill} --out FOLDER")
    print_line(str(folder / layout.PAGE))
    for warning in warnings:
        print_error(f"WARNING: {warning}")
    raise typer.Exit(ExitCode.ERROR if warnings else ExitCode.HELD)


def render_together(directories: Sequence[Path], out: Path) -> list[str]:
    """Write one report about the runs in `directories` into the new folder `out`. Return the warnings that its page
    shows. The pages in the run directories stay unchanged."""
    refuse_used(out, directories)
    bundles, judgement = shown_together(directories)
    linked = write_shared(out, judgement, bundles)
    annotate(linked.view, print_workflow_command)
    append_step_summary(linked.view)
    return linked.view.doubts()


def render(directory: Path) -> list[str]:
    """Render the reports of a run directory again, write its manifest again, and return the warnings on its page. If a
    run is incomplete or changed, the page shows this, and no manifest is written. Raises UsageError for an archive."""
    [bundle], judgement = judged([directory])
    junit = not bundle.place.published
    if unfit(bundle, judgement, replaced(bundle)) or bundle.seal.missing:
        session.write_reports(bundle.place.writable(), judgement.view, junit=junit)
        return judgement.view.doubts()
    with rewritten(bundle, judgement, replaced(bundle)) as (folder, view):
        session.write_reports(folder, view, junit=junit)
    before, now = bundle.seal.digest, read_bundle(directory).seal.digest
    if before != now:
        print_line(f"new manifest: sha256:{now}, before sha256:{before}; with --out FOLDER, no run is changed")
    return []
