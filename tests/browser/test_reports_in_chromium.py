"""Reports as a browser shows them: the published CPU and GPU runs, drawn afresh, and one with every kind of verdict."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import Browser
from published_pages import REPORTS, PageOf
from report_in_browser import VARIANTS, check, show
from report_views import drill_view, full_view, header, verdict, view_of, waiver, whole_drill_view

from harness.cli.history import write_history
from harness.judging.verdict import Status
from harness.report.html import render
from harness.report.view import ReportView

SCREENS = {variant.name: variant for variant in VARIANTS}
LIGHT, PHONE = (SCREENS[name] for name in ("light", "phone-light"))
AXE_IN = {"light", "phone-dark"}


def partly_decided() -> ReportView:
    """19 units of 88 held, one was measured without a decision, the others need a GPU."""
    why = {"reason": "needs_cuda", "message": "needs CUDA: this machine has no CUDA device"}
    units = [verdict(f"HELD-{place}") for place in range(19)]
    units.append(verdict("F-GRAPH-BWD-003", status=Status.INCONCLUSIVE, reason="limits_exceeded", message="shared"))
    units += [verdict(f"NEEDS-CUDA-{place}", status=Status.NOT_RUN, **why) for place in range(68)]
    return replace(view_of(), verdicts=units)


PUBLISHED = {
    "cpu-run": "drills/*-cpu-traced-step",
    "gpu-run": "gates/*-gate-backward",
    "gpu-timing": "*-throughput-tiny",
    "gpu-kinds": "gates/*-gate-not-worse",
}
DRILLS = {"gpu-drill": "*-h200-drill-untimed"}
MADE: dict[str, Callable[[], ReportView]] = {
    "every-verdict": full_view,
    "fire-drill": drill_view,
    "held": lambda: view_of(Status.PASS, Status.PASS),
    "partly-decided": partly_decided,
    "waived": lambda: view_of(Status.PASS, Status.FAIL, header=header(waivers=[waiver("w1")])),
    "partly-drilled": lambda: whole_drill_view(killed=[True, False], not_run=3),
    "altered": lambda: view_of(Status.PASS, altered=("evidence/a.csv: changed",)),
}


PAGES = [*PUBLISHED, *MADE]


@functools.cache
def made(name: str) -> str:
    return render(MADE[name]())


@pytest.fixture
def report(name: str, tmp_path: Path, published_page: PageOf) -> Path:
    """The file of the page `name`."""
    path, published = tmp_path / f"{name}.html", PUBLISHED | DRILLS
    path.write_text(
        published_page(max(REPORTS.glob(published[name]))) if name in published else made(name), encoding="utf-8"
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_each_report_page_renders_in_every_variant_without_requests_or_serious_axe_violations(
    browser: Browser, axe: str, report: Path, name: str
) -> None:
    """Axe checks each page in one light, one dark and one narrow variant.

    Of rows, tables and cards with the same shape it checks only one. A made-up page is checked whole in the light
    variant.
    """
    one_of_each = AXE_IN if name in PUBLISHED else {"phone-dark"}
    assert check(browser, report, VARIANTS, axe, axe_in=AXE_IN, one_of_each=one_of_each) == []


@pytest.mark.parametrize("variant", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "words", "colours"),
    [
        ("held", "HELD 2 units · 2 held Every planned unit held.", ("rgb(11, 107, 58)", "rgb(111, 214, 155)")),
        (
            "partly-decided",
            (
                "PARTLY DECIDED 88 units · 19 held · 1 undecided · 68 not run "
                "19 of 88 planned units held (1 undecided, 68 not run)."
            ),
            ("rgb(122, 82, 0)", "rgb(240, 192, 90)"),
        ),
        (
            "waived",
            "HELD, 1 waived 2 units · 1 held · 1 waived Every planned unit held, or is waived (1).",
            ("rgb(91, 74, 158)", "rgb(185, 171, 255)"),
        ),
        (
            "altered",
            "ERROR Evidence differs from the digests recorded with it, so nothing here is proven.",
            ("rgb(138, 28, 124)", "rgb(240, 154, 228)"),
        ),
    ],
)
def test_the_headline_shows_its_word_and_colour_in_each_variant(
    browser: Browser, report: Path, words: str, colours: tuple[str, str], variant: str
) -> None:
    """Only the headline of a result that held is green. The title of the browser's tab begins with the same word."""
    show(browser, report, SCREENS[variant])
    assert browser.evaluate("document.querySelector('.headline').innerText.split('\\n')[0]") == words
    colour = browser.evaluate("getComputedStyle(document.querySelector('.headline strong')).color")
    assert colour == colours[variant == "dark"]
    assert words.startswith(browser.evaluate("document.title").split(" · ")[0])


@pytest.mark.parametrize("name", ["gpu-drill"])
def test_a_wide_matrix_scrolls_while_its_fault_names_stay_visible(browser: Browser, report: Path) -> None:
    show(browser, report, PHONE)
    widest = """[...document.querySelectorAll('.matrices .scroll')].sort((a, b) => b.scrollWidth - a.scrollWidth)[0]"""
    assert browser.evaluate(f"{widest}.scrollWidth > {widest}.clientWidth")
    browser.evaluate(f"{widest}.scrollLeft = {widest}.scrollWidth")
    left = f"{widest}.querySelector('tbody th').getBoundingClientRect().left - {widest}.getBoundingClientRect().left"
    assert browser.evaluate(left) == 0


def test_a_history_of_published_runs_renders_well_in_every_variant(browser: Browser, axe: str, tmp_path: Path) -> None:
    page = tmp_path / "history.html"
    published = [REPORTS / "ranks", *sorted(REPORTS.glob("*-traced")), *sorted(REPORTS.glob("*-throughput-tiny"))]
    for each in published:  # which are judged in a second: history.md has its own bounds on many runs
        shutil.copytree(each, tmp_path / "runs" / each.name)
    assert write_history(tmp_path / "runs", page) == f"5 runs: {page}"
    assert check(browser, page, VARIANTS, axe, axe_in=AXE_IN, one_of_each=AXE_IN) == []
    show(browser, page, LIGHT)
    assert browser.evaluate("document.querySelector('.count').innerText") == "5 runs: 4 verified, 1 fire drill"
    assert browser.evaluate("document.querySelectorAll('.runs tbody tr').length") == 5
    links = browser.evaluate("[...document.querySelectorAll('.runs a')].map(link => link.href)")
    own = [tmp_path / "runs" / each.name / "report.html" for each in published[1:]]
    assert sorted(links) == sorted(page.as_uri() for page in own)
