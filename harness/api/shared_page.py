"""Write the pages of several run directories in a folder of their own, which leads to the page of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.api import session
from harness.errors import UsageError
from harness.evidence import layout
from harness.report.view import RunPart
from harness.run_directory.bundle import Bundle
from harness.run_directory.output_paths import made_folder, refuse_within_run, takes_nothing, way
from harness.run_directory.shards import part_names

_REMEDY = "name a folder that is new or empty, outside of the runs"


def refuse_used(out: Path, runs: Sequence[Path]) -> None:
    """Raise UsageError where the folder for the pages holds something, is a file, or lies in a run."""
    try:
        held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
        taken = os.path.lexists(out) and not out.is_dir()
    except OSError as error:
        raise takes_nothing(out, error) from error
    if held:
        got = f"a folder that holds {held[0]}"
        raise UsageError("nothing is overwritten by --out", where=str(out), got=got, remedy=_REMEDY)
    if taken:
        raise UsageError("--out takes a folder", where=str(out), got="a file", remedy=_REMEDY)
    refuse_within_run(out, runs)


def write_shared(out: Path, judgement: session.Judgement, bundles: Sequence[Bundle]) -> session.Judgement:
    """Write `report.html`, `summary.md` and `junit.xml` into the folder, which `refuse_used` let pass.

    Return the judgement with links to the parts' own pages, as the page has it. Raises UsageError where the folder
    takes no file.
    """
    pages = {name: _way(out, bundle) for name, bundle in zip(part_names(bundles), bundles, strict=True)}
    parts: tuple[RunPart, ...] = tuple(replace(part, page=pages[part.name]) for part in judgement.view.parts)
    linked = replace(judgement, view=replace(judgement.view, parts=parts))
    made_folder(out)
    try:
        session.write_reports(out, linked.view)
    except OSError as error:
        raise takes_nothing(out, error) from error
    return linked


def _way(out: Path, bundle: Bundle) -> str | None:
    """Return the relative path from a folder to a run's own page; None for an archive, and if no page was drawn."""
    page = bundle.place.derived / layout.PAGE
    if bundle.place.derived != bundle.place.named or not page.is_file():
        return None
    return way(out, page)
