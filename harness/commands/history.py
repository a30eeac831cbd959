"""`harness history`: every figure over the runs of a folder; nothing is run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.evidence import layout
from harness.rejudge import judged
from harness.report.history import render_history
from harness.run_directory.bundle import write_text


def history(
    reports: Annotated[Path, typer.Argument(help="A folder of run directories.")],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("history.html"),
) -> None:
    """Draw every figure over the runs of a folder; only like machines share a line."""
    typer.echo(write_history(reports, out))


def write_history(reports: Path, out: Path) -> str:
    """Write the page of a folder's runs; one line that says so. Unfinished runs are left out and named."""
    directories = sorted(path.parent for path in reports.glob(f"*/{layout.HEADER}"))
    finished = [directory for directory in directories if not (directory / layout.INCOMPLETE).exists()]
    if not finished:
        raise UsageError("a history needs run directories", where=str(reports), got="no finished one")
    for directory in sorted(set(directories) - set(finished)):
        print(f"left out: {directory} did not finish", file=sys.stderr)
    views = [judged([directory])[1].view for directory in finished]
    write_text(out, render_history(views))
    return f"{len(views)} runs: {out}"
