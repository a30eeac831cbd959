"""Judge and draw published runs once for all processes of a session, because one takes up to 12 s."""

from __future__ import annotations

import functools
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from drawn_plots import DrawnPlot, drawn_plots
from filelock import FileLock

from harness.api.rejudge import judged
from harness.report.charts import svg
from harness.report.charts.svg import Plot
from harness.report.html import render
from harness.report.view import ReportView
from harness.run_directory.places import runs_in

REPORTS = Path(__file__).parents[2] / "reports"
DIRECTORIES = runs_in(REPORTS)
[_PARTS] = re.findall(r"^GATE_PARTS := (.+)$", (REPORTS.parent / "Makefile").read_text(), re.MULTILINE)
GATE_PARTS = [REPORTS.parent / name for name in _PARTS.split()]


@dataclass(frozen=True)
class Published:
    """A published run's page, and every plot of its sections, whether or not it is on the page."""

    page: str
    plots: tuple[DrawnPlot, ...]


PublishedOf = Callable[[Path], Published]
PageOf = Callable[[Path], str]


@functools.cache
def judged_run(directory: Path) -> ReportView:
    """Return a published run after judging it."""
    return judged([directory])[1].view


def published_in(shared: Path) -> PublishedOf:
    """Return a function that shows a published run; `shared`: a folder of all processes of a test session."""

    def published_of(directory: Path) -> Published:
        kept = shared / f"published-{'-'.join(directory.relative_to(REPORTS).parts)}"
        with FileLock(kept.with_suffix(".lock")):
            if not kept.exists():
                with drawings_of(shared):
                    view = judged_run(directory)
                    _write(kept, Published(render(view), drawn_plots(view)))
        found: Published = pickle.loads(kept.read_bytes())  # noqa: S301 - written above
        return found

    return published_of


@contextmanager
def drawings_of(shared: Path) -> Iterator[None]:
    """Reuse figures that a process of the test session has already drawn within this block."""
    (shared / "drawings").mkdir(exist_ok=True)
    with mock.patch.object(svg, "_drawn", _Drawings(shared / "drawings")):
        yield


class _Drawings(dict[bytes, Plot]):
    """Plots by the digest of what they show, each stored in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __contains__(self, asked: object) -> bool:
        return isinstance(asked, bytes) and (super().__contains__(asked) or (self.folder / asked.hex()).exists())

    def __missing__(self, asked: bytes) -> Plot:
        plot: Plot = pickle.loads((self.folder / asked.hex()).read_bytes())  # noqa: S301 - written below
        super().__setitem__(asked, plot)
        return plot

    def __setitem__(self, asked: bytes, plot: Plot) -> None:
        super().__setitem__(asked, plot)
        _write(self.folder / asked.hex(), plot)


def _write(path: Path, value: object) -> None:
    """Write the whole file at once, because another process may be reading it."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_bytes(pickle.dumps(value))
    own.replace(path)


def shared_folder(factory: pytest.TempPathFactory, worker: str) -> Path:
    """Return the folder of temporary files; under xdist, the parent of each process's own folder."""
    own = factory.getbasetemp()
    return own if worker == "master" else own.parent
