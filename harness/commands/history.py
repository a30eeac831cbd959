"""`harness history`: every figure over the runs of a folder; nothing is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.evidence import layout
from harness.evidence.files import write_text
from harness.existing_paths import require_existing
from harness.numbers import counted
from harness.rejudge import judged
from harness.report.history import render_history
from harness.run_directory.places import runs_in
from harness.standard_streams import print_error, print_line


def history(
    reports: Annotated[Path, typer.Argument(help="A folder of run directories, published ones, archives.")],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("history.html"),
) -> None:
    """Draw every figure over the runs of a folder; only like machines share a line."""
    print_line(write_history(reports, out))


def write_history(reports: Path, out: Path) -> str:
    """Write the page of a folder's runs; one line that says so. Unfinished and altered runs are left out and named."""
    require_existing([reports])
    views = []
    for run in runs_in(reports):
        left = "did not finish" if os.path.lexists(run / layout.INCOMPLETE) else ""  # it may lack what is read below
        if not left:
            [bundle], judgement = judged([run])
            left = bundle.seal.missing.removeprefix("the run ")
            left = left or ("differs from the digests recorded with it" if judgement.view.altered else "")
        if left:
            print_error(f"left out: {run} {left}")
        else:
            views.append(judgement.view)
    if not views:
        raise UsageError("a history needs run directories", where=str(reports), got="no finished one")
    write_text(out, render_history(views))
    return f"{counted(len(views), 'run')}: {out}"
