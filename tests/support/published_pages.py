"""Pages of the published runs, each drawn once for all processes of a session: a GPU run's takes 12 s."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from harness.rejudge import judged
from harness.report.html import render
from harness.report.view import ReportView
from harness.run_directory.places import runs_in

REPORTS = Path(__file__).parents[2] / "reports"
DIRECTORIES = runs_in(REPORTS)
[_PARTS] = re.findall(r"^GATE_PARTS := (.+)$", (REPORTS.parent / "Makefile").read_text(), re.MULTILINE)
GATE_PARTS = [REPORTS.parent / name for name in _PARTS.split()]
PageOf = Callable[[Path], str]


@functools.cache
def judged_run(directory: Path) -> ReportView:
    """A published run, judged."""
    return judged([directory])[1].view


def drawn_once(shared: Path) -> PageOf:
    """Gives the page of a published run; `shared` is a folder that the processes of a session have in common."""

    def page_of(directory: Path) -> str:
        page = shared / f"page-of-{directory.name}.html"
        with FileLock(page.with_suffix(".lock")):
            if not page.exists():
                page.write_text(render(judged_run(directory)), encoding="utf-8")
        return page.read_text(encoding="utf-8")

    return page_of


def shared_folder(factory: pytest.TempPathFactory, worker: str) -> Path:
    """The folder of temporary files; under xdist, where each process has its own, the one around them."""
    own = factory.getbasetemp()
    return own if worker == "master" else own.parent
