"""Show a run on GitHub Actions next to its log: as annotations, and on the page of the job. Elsewhere do nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.report.view import ReportView


def annotate(view: ReportView, write: Callable[[str], object]) -> None:
    """Pass each annotation, a line for the log, to `write`; do nothing outside of GitHub Actions."""
    if not _here():
        return
    from harness.report.annotations import github_annotations

    for annotation in github_annotations(view):
        write(annotation)


def append_step_summary(view: ReportView) -> None:
    """Append the run's Markdown to the step's part of the job's page; do nothing outside of GitHub Actions.

    GitHub drops the whole part if it is too large, so the Markdown gets only the room that earlier texts left.
    """
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if not _here() or not place:
        return
    from harness.report.markdown import LIMIT_BYTES, render_markdown

    with Path(place).open("a", encoding="utf-8") as file:
        room = LIMIT_BYTES - file.tell() - 1
        text = render_markdown(view, room)
        if len(text.encode()) <= room:
            file.write(f"{text}\n")


def _here() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
