"""Every check of a page in a browser is seen to fail, on a small report with something wrong."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from chromium import Browser
from report_in_browser import VARIANTS, Variant, check
from report_views import small_view, verdict

from harness.judging.verdict import Status
from harness.report.html import render

SCREENS = {variant.name: variant for variant in VARIANTS}
LIGHT, PHONE, DARK, PRINT, WITHOUT = (
    SCREENS[name] for name in ("light", "phone-light", "dark", "print", "no-javascript")
)


@functools.cache
def small_report() -> str:
    """A claim that does not hold, whose card is on paper, too."""
    return render(small_view(verdicts=[verdict("F-GRAPH-BWD-001", status=Status.FAIL)]))


def planted(tmp_path: Path, what: str, *, policy: bool = True, gone: str = "") -> Path:
    """A report with `what` at its end, with or without its content policy, and without the text `gone`."""
    html = small_report()
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


def test_a_network_request_of_a_page_is_found(browser: Browser, tmp_path: Path) -> None:
    report = planted(tmp_path, "<link rel='prefetch' href='planted.css'>", policy=False)
    assert [found for found in check(browser, report, [LIGHT]) if "request: file:" in found and "planted.css" in found]


@pytest.mark.parametrize("variant", [LIGHT, PHONE], ids=lambda variant: variant.name)
def test_an_element_that_makes_a_page_scroll_sideways_is_found(
    browser: Browser, tmp_path: Path, variant: Variant
) -> None:
    report = planted(tmp_path, "<svg width='1300' height='9'><path d='M0 0h9v9z'/></svg>")
    assert "the page scrolls sideways by" in sole_finding(browser, report, variant)


def test_an_image_that_renders_nothing_is_found(browser: Browser, tmp_path: Path) -> None:
    assert "1 of 4 images are not drawn" in sole_finding(browser, planted(tmp_path, "<svg></svg>"), LIGHT)


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
def test_each_browser_variant_reports_its_own_findings_even_when_loads_are_shared(
    browser: Browser, axe: str, tmp_path: Path, variants: tuple[Variant, ...], axe_in: tuple[str, ...]
) -> None:
    """Findings of axe in one variant are not reused for a different variant, even if both share a page load."""
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


def test_a_page_action_runs_on_a_freshly_loaded_page_for_each_variant(browser: Browser, tmp_path: Path) -> None:
    def add(opened: Browser) -> None:
        opened.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<p id=planted>planted</p>')")

    assert check(browser, planted(tmp_path, ""), [LIGHT, DARK], then=add) == []


def test_axe_checks_tools_that_the_comparison_of_words_leaves_out(browser: Browser, axe: str, tmp_path: Path) -> None:
    report = planted(tmp_path, "<p class='tool'><font color='#dddddd'>planted</font></p>")
    [found] = check(browser, report, [LIGHT, WITHOUT], axe, axe_in={"light"}, one_of_each={"light"})
    assert found.startswith("planted.html light: axe: color-contrast")


def test_words_that_are_shown_only_with_javascript_are_found(browser: Browser, tmp_path: Path) -> None:
    report = planted(tmp_path, "<script>document.body.append('planted')</script>", policy=False)
    _, found = check(browser, report, [WITHOUT])
    assert found == "planted.html no-javascript: other words without JavaScript than with it"


@pytest.mark.parametrize("one_of_each", [(), ("light",)])
def test_text_with_low_contrast_on_a_page_is_found(
    browser: Browser, axe: str, tmp_path: Path, one_of_each: tuple[str, ...]
) -> None:
    """Axe may check only one of several rows with the same shape.

    The second row differs from the first in more than its words, so axe checks it, too.
    """
    rows = "<tr><td>sound</td></tr><tr><td><font color='#dddddd'>planted</font></td></tr>"
    report = planted(tmp_path, f"<table><caption>planted</caption><tbody>{rows}</tbody></table>")
    [found] = check(browser, report, [LIGHT], axe, one_of_each=one_of_each)
    assert found.startswith("planted.html light: axe: color-contrast")


@pytest.mark.parametrize("one_of_each", [(), ("light",)])
def test_a_link_without_words_on_a_page_is_found(
    browser: Browser, axe: str, tmp_path: Path, one_of_each: tuple[str, ...]
) -> None:
    """Axe may check only one of several rows with the same shape.

    The second row differs from the first in the words of its link, so axe checks it, too.
    """
    rows = "".join(f"<tr><td><a href='#claims'>{words}</a></td></tr>" for words in ("claims", ""))
    report = planted(tmp_path, f"<table><caption>planted</caption><tbody>{rows}</tbody></table>")
    [found] = check(browser, report, [LIGHT], axe, one_of_each=one_of_each)
    assert found.startswith("planted.html light: axe: link-name")


def test_a_duplicate_id_on_a_page_is_found(browser: Browser, tmp_path: Path) -> None:
    found = sole_finding(browser, planted(tmp_path, "<p id='planted'></p><p id='planted'></p>"), LIGHT)
    assert found == "ids that stand there twice: planted"


@pytest.mark.parametrize("named", ["<a href='#{}'>planted</a>", "<p aria-labelledby='claims {}'>planted</p>"])
def test_a_reference_to_a_missing_id_on_a_page_is_found(browser: Browser, tmp_path: Path, named: str) -> None:
    found = sole_finding(browser, planted(tmp_path, named.format("planted")), LIGHT)
    assert found == "ids that are named and not there: planted"
