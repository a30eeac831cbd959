"""Published runs stay light, as CONTRIBUTING.md promises, and each shows what a published run shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.cli.report import render
from harness.run_directory.bundle import read_bundle
from harness.run_directory.places import runs_in
from harness.run_directory.verdict_file import read_verdicts

REPORTS = Path(__file__).parents[2] / "reports"
MOST_FILES, MOST_BYTES = 300, 8_000_000
SHOWN = {"manifest.json", "report.html", "run.tar.xz", "summary.md", "verdicts.json"}
RUNS = [run for place in (".", "accuracy", "gates", "statistics/trials") for run in runs_in(REPORTS / place)]
UNSHOWN = [run for run in RUNS if not (run / "report.html").is_file() and "-trial-" not in run.name]


def test_reports_hold_at_most_300_files_and_8_mb() -> None:
    sizes = [path.stat().st_size for path in REPORTS.rglob("*") if path.is_file()]
    assert len(sizes) <= MOST_FILES
    assert sum(sizes) <= MOST_BYTES


def test_a_published_run_consists_of_pages_one_archive_and_a_manifest() -> None:
    assert len(RUNS) >= 15
    other = {run: {path.name for path in run.iterdir()} ^ SHOWN for run in RUNS}
    unfit = {run.name: files - {"drill.json"} for run, files in other.items() if files - {"drill.json"}}
    assert set(map(frozenset, unfit.values())) == {frozenset({"report.html"})}


@pytest.mark.slow
@pytest.mark.parametrize("run", runs_in(REPORTS), ids=lambda run: run.name)
def test_a_published_run_and_its_archive_are_sealed(run: Path) -> None:
    sealed = read_bundle(run).seal
    assert (sealed.missing, sealed.lines()) == ("", [])
    assert read_bundle(run / "run.tar.xz").seal.whole


@pytest.mark.slow
@pytest.mark.parametrize("run", UNSHOWN, ids=lambda run: run.name)
def test_a_published_run_without_a_page_gets_its_page_from_the_archive(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / run.name)
    render(copy)
    page = (copy / "report.html").read_text()
    claims = {verdict.claim for verdict in read_verdicts(run).claims}
    assert claims
    assert [claim for claim in sorted(claims) if claim not in page] == []
