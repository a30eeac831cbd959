"""Reports as a browser shows them: the published CPU and GPU runs, drawn afresh, and one with every kind of verdict."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from check_report_in_browser import VARIANTS, Variant, check, show
from chromium import Browser
from published_pages import REPORTS, PageOf
from report_views import drill_view, full_view, header, verdict, view_of, waiver, whole_drill_view

from harness.commands.history import write_history
from harness.judge.verdict import Status
from harness.report.html import render
from harness.report.view import ReportView

SCREENS = {variant.name: variant for variant in VARIANTS}
LIGHT, PHONE, DARK, PRINT, WITHOUT = (
    SCREENS[name] for name in ("light", "phone-light", "dark", "print", "no-javascript")
)
AXE_IN = {"light", "phone-dark"}


def partly_decided() -> ReportView:
    """19 units of 88 held, one was measured without a decision, the others need a GPU."""
    why = {"reason": "needs_cuda", "message": "needs CUDA: this machine has no CUDA device"}
    units = [verdict(f"HELD-{place}") for place in range(19)]
    units.append(verdict("F-GRAPH-BWD-003", status=Status.INCONCLUSIVE, reason="limits_exceeded", message="shared"))
    units += [verdict(f"NEEDS-CUDA-{place}", status=Status.NOT_RUN, **why) for place in range(68)]
    return replace(view_of(), verdicts=units)


PUBLISHED = {
    "cpu-run": "*-cpu-drill",
    "gpu-run": "gates/*-gate-one",
    "gpu-timing": "*-throughput-tiny",
    "gpu-kinds": "gates/*-gate-two",
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


@pytest.mark.parametrize("name", PAGES)
def test_it_shows_well_everywhere_asks_for_nothing_and_axe_finds_no_serious_violation(
    browser: Browser, axe: str, report: Path, name: str
) -> None:
    """Axe looks at it in the light, and in other colours and another width. Of what has one shape, rows, tables and
    cards, it sees one; in the light all of a made-up page, and of the published gate's.
    """
    one_of_each = AXE_IN if name in PUBLISHED else {"phone-dark"}
    assert check(browser, report, VARIANTS, axe, axe_in=AXE_IN, one_of_each=one_of_each) == []


@pytest.mark.parametrize("variant", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "words", "colours"),
    [
        ("held", "HELD 2 of 2 Every planned unit held.", ("rgb(11, 107, 58)", "rgb(111, 214, 155)")),
        (
            "partly-decided",
            "PARTLY DECIDED 19 of 88 19 of 88 planned units held (1 undecided, 68 not run).",
            ("rgb(122, 82, 0)", "rgb(240, 192, 90)"),
        ),
        (
            "waived",
            "HELD, 1 waived 1 of 2 Every planned unit held, or is waived (1).",
            ("rgb(91, 74, 158)", "rgb(185, 171, 255)"),
        ),
        (
            "altered",
            "ERROR Evidence differs from the digests recorded with it, so nothing here is proven.",
            ("rgb(138, 28, 124)", "rgb(240, 154, 228)"),
        ),
    ],
)
def test_the_headline_as_it_is_read(
    browser: Browser, report: Path, words: str, colours: tuple[str, str], variant: str
) -> None:
    """Green, and only green, is for what held; the tab's title begins with the word."""
    show(browser, report, SCREENS[variant])
    assert browser.evaluate("document.querySelector('.headline').innerText") == words
    colour = browser.evaluate("getComputedStyle(document.querySelector('.headline strong')).color")
    assert colour == colours[variant == "dark"]
    assert words.startswith(browser.evaluate("document.title").split(" · ")[0])


@pytest.mark.parametrize("name", ["gpu-drill"])
def test_a_wide_matrix_scrolls_inside_and_keeps_its_faults_in_sight(browser: Browser, report: Path) -> None:
    show(browser, report, PHONE)
    widest = """[...document.querySelectorAll('.matrices .scroll')].sort((a, b) => b.scrollWidth - a.scrollWidth)[0]"""
    assert browser.evaluate(f"{widest}.scrollWidth > {widest}.clientWidth")
    browser.evaluate(f"{widest}.scrollLeft = {widest}.scrollWidth")
    left = f"{widest}.querySelector('tbody th').getBoundingClientRect().left - {widest}.getBoundingClientRect().left"
    assert browser.evaluate(left) == 0


def test_a_history_of_published_runs_shows_well_everywhere(browser: Browser, axe: str, tmp_path: Path) -> None:
    page = tmp_path / "history.html"
    published = [REPORTS / "ranks", *sorted(REPORTS.glob("gates/*-two-commits-*"))]
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


# --- every check, seen to fail -------------------------------------------------------------------------------


def planted(tmp_path: Path, what: str, *, policy: bool = True, gone: str = "") -> Path:
    """A report with `what` at its end, with or without its content policy, and without the text `gone`."""
    html = made("every-verdict")
    assert gone in html
    html = html.replace(gone, "") if gone else html
    html = html.replace("</main>", f"{what}</main>")
    if not policy:
        html = html.replace('http-equiv="Content-Security-Policy"', 'name="policy"')
    report = tmp_path / "planted.html"
    report.write_text(html, encoding="utf-8")
    return report


def sole_finding(browser: Browser, report: Path, variant: Variant) -> str:
    [found] = check(browser, report, [variant])
    return found.removeprefix(f"planted.html {variant.name}: ")


def test_a_message_on_the_console_is_found(browser: Browser, tmp_path: Path) -> None:
    message, scripts = check(
        browser, planted(tmp_path, "<script>console.error('planted')</script>", policy=False), [LIGHT]
    )
    assert "console: " in message
    assert "planted" in message
    assert scripts == "planted.html light: 2 scripts"


def test_a_breach_of_the_content_policy_is_found(browser: Browser, tmp_path: Path) -> None:
    found = check(browser, planted(tmp_path, "<p style='color: red'>planted</p>"), [LIGHT])
    assert "Content Security Policy" in found[0]


def test_a_request_is_found(browser: Browser, tmp_path: Path) -> None:
    report = planted(tmp_path, "<link rel='prefetch' href='planted.css'>", policy=False)
    assert [found for found in check(browser, report, [LIGHT]) if "request: file:" in found and "planted.css" in found]


@pytest.mark.parametrize("variant", [LIGHT, PHONE], ids=lambda variant: variant.name)
def test_a_wide_element_is_found(browser: Browser, tmp_path: Path, variant: Variant) -> None:
    report = planted(tmp_path, "<svg width='1300' height='9'><path d='M0 0h9v9z'/></svg>")
    assert "the page scrolls sideways by" in sole_finding(browser, report, variant)


def test_an_image_that_is_not_drawn_is_found(browser: Browser, tmp_path: Path) -> None:
    assert "1 of 11 images are not drawn" in sole_finding(browser, planted(tmp_path, "<svg></svg>"), LIGHT)


def test_a_page_that_stays_light_in_the_dark_is_found(browser: Browser, tmp_path: Path) -> None:
    report = planted(tmp_path, "", policy=False, gone="--paper: #16191d;")
    assert "is not what the colour scheme asks for" in sole_finding(browser, report, DARK)


def test_folded_parts_that_are_not_printed_are_found(browser: Browser, tmp_path: Path) -> None:
    report = planted(tmp_path, "", policy=False, gone="content-visibility: visible; display: block; height: auto;")
    assert "folded parts are not printed" in sole_finding(browser, report, PRINT)


@pytest.mark.parametrize(
    ("variants", "axe_in"),
    [(VARIANTS[::-1], ()), (VARIANTS, ("light", "phone-dark"))],
    ids=["the other way round, without axe", "with axe"],
)
def test_what_is_wrong_in_some_variants_is_found_in_each_of_them(
    browser: Browser, axe: str, tmp_path: Path, variants: tuple[Variant, ...], axe_in: tuple[str, ...]
) -> None:
    """Whichever of them share a load: what axe has seen serves for no other."""
    wide = "<svg width='500' height='9'><path d='M0 0h9v9z'/></svg><script>document.body.append('planted')</script>"
    report = planted(tmp_path, wide, policy=False, gone="--paper: #16191d;")
    unfolded = "content-visibility: visible; display: block; height: auto;"
    report.write_text(report.read_text(encoding="utf-8").replace(unfolded, ""), encoding="utf-8")
    found = check(browser, report, variants, axe, axe_in=axe_in, one_of_each=axe_in)
    where = {
        words: {one.split()[1].rstrip(":") for one in found if words in one}
        for words in ("scrolls sideways", "background", "not printed", "2 scripts", "other words")
    }
    assert where == {
        "scrolls sideways": {"phone-light", "phone-dark"},
        "background": {"dark", "phone-dark"},
        "not printed": {"print"},
        "2 scripts": set(SCREENS),
        "other words": {"no-javascript"},
    }


def test_what_is_done_on_a_page_is_done_on_a_fresh_one_for_each_variant(browser: Browser, tmp_path: Path) -> None:
    def add(opened: Browser) -> None:
        opened.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<p id=planted>planted</p>')")

    assert check(browser, planted(tmp_path, ""), [LIGHT, DARK], then=add) == []


def test_axe_sees_the_tools_that_the_words_are_read_without(browser: Browser, axe: str, tmp_path: Path) -> None:
    report = planted(tmp_path, "<p class='tool'><font color='#dddddd'>planted</font></p>")
    [found] = check(browser, report, [LIGHT, WITHOUT], axe, axe_in={"light"}, one_of_each={"light"})
    assert found.startswith("planted.html light: axe: color-contrast")


def test_words_that_need_javascript_are_found(browser: Browser, tmp_path: Path) -> None:
    report = planted(tmp_path, "<script>document.body.append('planted')</script>", policy=False)
    _, found = check(browser, report, [WITHOUT])
    assert found == "planted.html no-javascript: other words without JavaScript than with it"


@pytest.mark.parametrize("one_of_each", [(), ("light",)])
def test_low_contrast_is_found(browser: Browser, axe: str, tmp_path: Path, one_of_each: tuple[str, ...]) -> None:
    """In the second row of a table, too, where it differs from the first by more than its words."""
    rows = "<tr><td>sound</td></tr><tr><td><font color='#dddddd'>planted</font></td></tr>"
    report = planted(tmp_path, f"<table><caption>planted</caption><tbody>{rows}</tbody></table>")
    [found] = check(browser, report, [LIGHT], axe, one_of_each=one_of_each)
    assert found.startswith("planted.html light: axe: color-contrast")


@pytest.mark.parametrize("one_of_each", [(), ("light",)])
def test_a_link_without_words_is_found(
    browser: Browser, axe: str, tmp_path: Path, one_of_each: tuple[str, ...]
) -> None:
    """In a row that differs in that alone from the one above, too."""
    rows = "".join(f"<tr><td><a href='#claims'>{words}</a></td></tr>" for words in ("claims", ""))
    report = planted(tmp_path, f"<table><caption>planted</caption><tbody>{rows}</tbody></table>")
    [found] = check(browser, report, [LIGHT], axe, one_of_each=one_of_each)
    assert found.startswith("planted.html light: axe: link-name")


def test_an_id_that_is_there_twice_is_found(browser: Browser, tmp_path: Path) -> None:
    found = sole_finding(browser, planted(tmp_path, "<p id='planted'></p><p id='planted'></p>"), LIGHT)
    assert found == "ids that stand there twice: planted"


@pytest.mark.parametrize("named", ["<a href='#{}'>planted</a>", "<p aria-labelledby='claims {}'>planted</p>"])
def test_an_id_that_is_named_and_not_there_is_found(browser: Browser, tmp_path: Path, named: str) -> None:
    found = sole_finding(browser, planted(tmp_path, named.format("planted")), LIGHT)
    assert found == "ids that are named and not there: planted"
