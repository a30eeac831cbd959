"""The one page of the published runs that are the gate together, as a browser shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Browser
from filelock import FileLock
from first_screen import first_screen
from published_pages import GATE_PARTS, drawings_of, shared_folder
from report_in_browser import VARIANTS, check, show

from harness.api.copies import write_shared
from harness.api.rejudge import shown_together

pytestmark = pytest.mark.slow
SCREENS = {variant.name: variant for variant in VARIANTS}
BOUND = 700_000  # bytes of a page that eight run directories with 165 units share


@pytest.fixture(scope="session")
def gate_page(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Drawn once for all processes of a session."""
    shared = shared_folder(tmp_path_factory, worker_id)
    folder = shared / "gate-page"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            with drawings_of(shared):
                bundles, judgement = shown_together(GATE_PARTS)
                write_shared(folder, judgement, bundles)
    return folder / "report.html"


def test_the_gate_page_is_small_enough_to_mail(gate_page: Path) -> None:
    assert gate_page.stat().st_size <= BOUND


def test_the_gate_page_renders_in_every_variant_without_requests_or_serious_axe_violations(
    browser: Browser, axe: str, gate_page: Path
) -> None:
    found = check(browser, gate_page, VARIANTS, axe, axe_in={"light", "phone-dark"}, one_of_each={"phone-dark"})
    assert found == []


def test_the_gate_page_shows_its_result_system_and_device_before_scrolling(browser: Browser, gate_page: Path) -> None:
    seen = first_screen(browser, gate_page)
    for told in (
        "HELD 165 units · 165 held",
        "A captured step of four micro-batches trains like the uncaptured step, with every bit equal",
        "reference_impl.system:QLoRASystem",
        "NVIDIA H200",
        "ACCUMULATION-001",
    ):
        assert told in seen


def test_the_gate_page_names_its_parts_without_links_to_pages_of_the_parts(browser: Browser, gate_page: Path) -> None:
    show(browser, gate_page, SCREENS["light"])
    named = browser.evaluate("[...document.querySelectorAll('.parts tbody th')].map(each => each.textContent)")
    assert [name.strip() for name in named] == [part.name for part in GATE_PARTS]
    assert browser.evaluate("document.querySelectorAll('.parts tbody a').length") == 0
