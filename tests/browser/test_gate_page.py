"""The one page of the published runs that are the gate together, as a browser shows it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from check_report_in_browser import VARIANTS, check, show
from chromium import Browser
from filelock import FileLock
from first_screen import first_screen
from published_pages import GATE_PARTS, shared_folder

from harness.rejudge import shown_together
from harness.shared_page import write_shared

SCREENS = {variant.name: variant for variant in VARIANTS}
BOUND = 600_000  # bytes of a page that run directories share


@pytest.fixture(scope="session")
def gate_page(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Drawn once for all processes of a session."""
    folder = shared_folder(tmp_path_factory, worker_id) / "gate-page"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            bundles, judgement = shown_together(GATE_PARTS)
            write_shared(folder, judgement, bundles)
    return folder / "report.html"


def test_it_is_small_enough_to_mail(gate_page: Path) -> None:
    assert gate_page.stat().st_size <= BOUND


def test_it_shows_well_everywhere_and_asks_for_nothing(browser: Browser, gate_page: Path) -> None:
    assert check(browser, gate_page) == []


@pytest.mark.parametrize("name", ["light", "phone-dark"])
def test_axe_finds_no_serious_violation(browser: Browser, axe: str, gate_page: Path, name: str) -> None:
    assert check(browser, gate_page, [SCREENS[name]], axe, one_of_each=name != "light") == []


def test_before_scrolling_it_says_what_came_of_what_and_where(browser: Browser, gate_page: Path) -> None:
    seen = first_screen(browser, gate_page)
    for told in (
        "VIOLATED 1 of 150",
        "150 planned · 148 held · 1 violated",
        "reference_impl.system:QLoRASystem",
        "commit aff98085082d, changed since",
        "NVIDIA H200",
        "≠ 2630f2005d8f+changes",
        "differ by up to 0.258 (step 39), more than 0.1",
    ):
        assert told in seen


def test_each_part_leads_to_its_own_page(browser: Browser, gate_page: Path) -> None:
    show(browser, gate_page, SCREENS["light"])
    ways = browser.evaluate("[...document.querySelectorAll('.parts tbody a')].map(each => each.getAttribute('href'))")
    found = sorted((gate_page.parent / unquote(way)).resolve() for way in ways)
    assert found == sorted(part / "report.html" for part in GATE_PARTS)
