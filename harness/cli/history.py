"""`harness history`: plot every judged number over the runs below a folder; nothing is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from harness.api.rejudge import judged
from harness.errors import HarnessError, UsageError
from harness.evidence import layout
from harness.numbers import counted
from harness.platform.paths import require_existing
from harness.platform.standard_streams import print_error, print_line
from harness.report.history import HistoryRun, render_history
from harness.run_directory.places import refuse_within_run, runs_below, way, write_named


def history(
    reports: Annotated[Path, typer.Argument(help="A folder with run directories, published runs or archives.")],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("history.html"),
) -> None:
    """Plot every judged number over the runs below a folder. A line connects only results from equal machines."""
    print_line(write_history(reports, out))


def write_history(reports: Path, out: Path) -> str:
    """Write the history page of the runs in `reports` to the file `out`. Return a line with the numbers of shown and of
    left-out runs. Print which runs the page leaves out, with the reason."""
    require_existing([reports])
    refuse_within_run(out)
    runs = [_read(path, reports, out) for path in runs_below(reports)]
    for run in runs:
        if run.left_out:
            print_error(f"left out: {reports / run.name} {run.left_out}")
    if all(run.left_out for run in runs):
        raise UsageError("a history needs at least one finished run directory", where=str(reports), got="none")
    write_named(out, render_history(runs))
    left_out = sum(bool(run.left_out) for run in runs)
    drawn = counted(len(runs) - left_out, "run")
    return f"{drawn}{f', {left_out} left out' if left_out else ''}: {out}"


def _read(path: Path, reports: Path, out: Path) -> HistoryRun:
    """Judge the run `path` again, and return it for the history page. If the page must leave the run out, the returned
    HistoryRun contains the reason."""
    page = path / layout.PAGE
    link = way(out.parent, page) if page.is_file() else None
    name = path.relative_to(reports).as_posix()
    if os.path.lexists(path / layout.INCOMPLETE):  # an incomplete directory may lack files that are read below
        return HistoryRun(name, link, None, "did not finish")
    try:
        [bundle], judgement = judged([path])
    except HarnessError as error:
        return HistoryRun(name, link, None, f"cannot be read: {error.sentence()}")
    except OSError as error:
        return HistoryRun(name, link, None, f"cannot be read: {error.strerror or type(error).__name__}")
    view = judgement.view
    left_out = bundle.seal.missing.removeprefix("the run ")
    left_out = left_out or ("differs from its recorded digests" if view.altered else "")
    left_out = left_out or (f"had the fault {view.header.fault} planted" if view.header.fault else "")
    return HistoryRun(name, link, view, left_out)
