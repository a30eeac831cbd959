"""A report is one file that can be mailed: below 400 KB but for its plots, however much was run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from published_pages import DIRECTORIES, PageOf, drawings_of, judged_run, shared_folder
from report_views import full_view

from harness.report.charts import svg
from harness.report.html import render
from harness.report.view import ReportView

BOUND = 400_000
COPIES = 16


def joined(views: list[ReportView]) -> ReportView:
    """All units of several runs as those of one."""
    units = {(unit.contract, unit.claim, unit.workload): unit for view in views for unit in view.header.units}
    verdicts = {(item.contract, item.claim, item.workload): item for view in views for item in view.verdicts}
    return replace(
        views[0],
        header=views[0].header.model_copy(update={"units": list(units.values())}),
        contracts=list({contract.id: contract for view in views for contract in view.contracts}.values()),
        verdicts=list(verdicts.values()),
        evidence={name: run for view in views for name, run in view.evidence.items()},
    )


def size(page: str) -> int:
    """Bytes of a page without its plots, of which none is left out."""
    return len(re.sub(r'<svg class="plot".*?</svg>', "", page, flags=re.DOTALL).encode())


@pytest.mark.slow
@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_a_published_run_stays_below_400_kb(directory: Path, published_page: PageOf) -> None:
    assert size(published_page(directory)) < BOUND
    assert len(published_page(directory).encode()) < 2 * BOUND


@pytest.mark.slow
def test_a_page_of_all_published_gpu_runs_stays_below_400_kb_with_its_timing_plots(
    published_page: PageOf, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> None:
    directories = [place for place in DIRECTORIES if judged_run(place).header.environment.gpu.name]
    with drawings_of(shared_folder(tmp_path_factory, worker_id)):
        page = render(joined([judged_run(place) for place in directories]))
    assert size(page) < BOUND
    timed = {
        title for place in directories for title in re.findall(r"Speed ratio of each process", published_page(place))
    }
    assert set(re.findall(r"Speed ratio of each process", page)) == timed


def test_a_page_with_a_hundred_units_of_every_kind_stays_below_400_kb() -> None:
    """The view is a made-up run repeated sixteen times with different workload names. Equal plots are drawn once."""
    copies = [renamed(full_view(), f"-{number}") for number in range(COPIES)]
    view = joined(copies)
    assert len(view.verdicts) == 112
    svg.forget()
    assert size(render(view)) < BOUND
    assert len(svg._drawn) == 7  # one of each kind of drawing, and a second trajectory, the one with a difference


def renamed(view: ReportView, end: str) -> ReportView:
    """The same run under other names of workloads and runs."""
    units = [
        unit.model_copy(update={"workload": unit.workload + end, "runs": [name + end for name in unit.runs]})
        for unit in view.header.units
    ]
    return replace(
        view,
        header=view.header.model_copy(update={"units": units}),
        verdicts=[item.model_copy(update={"workload": item.workload + end}) for item in view.verdicts],
        evidence={name + end: replace(run, run_id=name + end) for name, run in view.evidence.items()},
    )
