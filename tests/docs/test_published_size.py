"""Published runs stay light, as CONTRIBUTING.md promises, and each shows what a published run shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.run_directory.bundle import read_bundle
from harness.run_directory.places import runs_in

REPORTS = Path(__file__).parents[2] / "reports"
MOST_FILES, MOST_BYTES = 300, 8_000_000
SHOWN = {"manifest.json", "report.html", "run.tar.xz", "summary.md", "verdicts.json"}


def test_reports_hold_at_most_300_files_and_8_mb() -> None:
    sizes = [path.stat().st_size for path in REPORTS.rglob("*") if path.is_file()]
    assert len(sizes) <= MOST_FILES
    assert sum(sizes) <= MOST_BYTES


def test_a_published_run_is_its_pages_one_archive_and_a_manifest() -> None:
    runs = [run for place in (".", "accuracy", "gates", "statistics/trials") for run in runs_in(REPORTS / place)]
    assert len(runs) >= 15
    other = {run: {path.name for path in run.iterdir()} ^ SHOWN for run in runs}
    unfit = {run.name: files - {"drill.json"} for run, files in other.items() if files - {"drill.json"}}
    pages = [page.parent.name for page in REPORTS.glob("gates/*/report.html")]
    assert set(map(frozenset, unfit.values())) == {frozenset({"report.html"})}
    # a page of several shows a part that has none, or statistics count it
    assert [
        name for name in unfit if "-trial-" not in name and not any(name.startswith(f"{page}-") for page in pages)
    ] == []


@pytest.mark.parametrize("run", runs_in(REPORTS), ids=lambda run: run.name)
def test_a_published_run_is_sealed_and_its_archive_too(run: Path) -> None:
    sealed = read_bundle(run).seal
    assert (sealed.missing, sealed.lines()) == ("", [])
    assert read_bundle(run / "run.tar.xz").seal.whole
