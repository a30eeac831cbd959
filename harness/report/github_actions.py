"""What GitHub Actions shows of a run beside its log: annotations, and the page of the job. Elsewhere nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.report.view import ReportView


def annotate(view: ReportView, write: Callable[[str], object]) -> None:
    """Under GitHub Actions: give each annotation, a line for the log, to `write`."""
    if not _here():
        return
    from harness.report.annotations import github_annotations

    for annotation in github_annotations(view):
        write(annotation)


def append_step_summary(view: ReportView) -> None:
    """Under GitHub Actions: the run's Markdown onto the step's part of the job's page.

    GitHub drops the whole part where it is too large, so the Markdown gets the room that others left of it.
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
