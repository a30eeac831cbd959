"""What the page's one script adds: values, zoom, filter, search, a copied command; and that nothing of it is needed."""

from __future__ import annotations

import functools
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from budget import slow_but
from chromium import Browser
from hostile_views import HOSTILE, hostile_view
from report_in_browser import TOOLS, VARIANTS, Variant, check, show
from report_views import full_view, loss_curve

from harness.report.html import render
from harness.report.page import script

SCREENS = {variant.name: variant for variant in VARIANTS}
LIGHT = SCREENS["light"]
LOSSES = "#plot-1 svg"  # of the run of the larger model
CARDS = "[...document.querySelectorAll('article.card')].filter(card => !card.hidden)"
ROWS = "[...document.querySelectorAll('.claims tr[data-claim]')].filter(row => row.checkVisibility())"


@functools.cache
def page() -> str:
    return render(full_view())


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(page(), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser, report: Path) -> Browser:
    show(browser, report, LIGHT)
    browser.evaluate("document.querySelectorAll('.card.held > details').forEach(card => card.open = true)")
    return browser


def test_following_a_link_unfolds_the_card_that_it_targets(browser: Browser, report: Path) -> None:
    show(browser, report, LIGHT)
    folded = "document.querySelector('.card.held > details')"
    assert browser.evaluate(f"{folded}.open") is False
    browser.evaluate(f"new Promise(done => {{ onhashchange = done; location.hash = {folded}.parentElement.id; }})")
    assert browser.evaluate(f"{folded}.open") is True


def place(browser: Browser, selector: str) -> dict[str, float]:
    """Where the first such element is in the window, in CSS pixels; it is scrolled there."""
    found: dict[str, float] = browser.evaluate(
        f"""(() => {{
          const element = document.querySelector(`{selector}`);
          element.scrollIntoView({{block: 'center'}});
          const {{x, y, width, height}} = element.getBoundingClientRect();
          return {{x, y, width, height}};
        }})()"""
    )
    return found


def mouse(browser: Browser, kind: str, x: float, y: float, pressed: bool = False) -> None:
    button = {"button": "left", "buttons": int(pressed), "clickCount": 1} if kind != "mouseMoved" or pressed else {}
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)


def click(browser: Browser, selector: str) -> None:
    box = place(browser, selector)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    mouse(browser, "mousePressed", x, y, pressed=True)
    mouse(browser, "mouseReleased", x, y)


def key(browser: Browser, name: str) -> None:
    codes = {"ArrowRight": 39, "Tab": 9, "Enter": 13}
    text = {"text": "\r"} if name == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key=name,
            code=name,
            windowsVirtualKeyCode=codes[name],
            **(text if kind == "keyDown" else {}),
        )


def point_at(browser: Browser, step: float, steps: int = 99) -> tuple[float, float]:
    """The place in the window of a step of the losses' plot."""
    box = place(browser, LOSSES)
    area = browser.evaluate(
        f"(() => {{ const plot = document.querySelector('{LOSSES}'), area = plot.querySelector('rect[data-x]');"
        "const [low, high] = area.dataset.x.split(' ').map(Number);"
        "return [area.x.baseVal.value, area.width.baseVal.value, plot.viewBox.baseVal.width, low, high]; })()"
    )
    left, width, whole, low, high = map(float, area)
    assert low < 0 < steps < high
    x = (left + (step - low) / (high - low) * width) / whole * box["width"] + box["x"]
    return x, box["y"] + box["height"] / 2


def output(browser: Browser) -> str:
    text: str = browser.evaluate(f"document.querySelector('{LOSSES}').parentNode.querySelector('output').textContent")
    return text


def values(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"(\w+) \(\w+\) (-?[\d.]+)", text)}


# --- plots ------------------------------------------------------------------------------------------------------


def test_the_pointer_reads_each_arm_at_the_nearest_step(opened: Browser) -> None:
    mouse(opened, "mouseMoved", *point_at(opened, 40.3))
    assert output(opened).startswith("step 40: ")
    curve = loss_curve(100, 3)
    expected = {"ungraphed": curve[40], "graphed": curve[40], "untrained": loss_curve(100, 4)[40] + 0.6}
    assert values(output(opened)) == pytest.approx(expected, abs=0.02)  # two units of the image


def test_dragging_over_a_plot_zooms_into_the_range_and_a_double_click_undoes_the_zoom(opened: Browser) -> None:
    drawn = f"[...document.querySelectorAll('{LOSSES} [data-s]')].map(one => one.getBBox().width)"
    before = opened.evaluate(drawn)
    start, end = point_at(opened, 20), point_at(opened, 40)
    mouse(opened, "mousePressed", *start, pressed=True)
    mouse(opened, "mouseMoved", *end, pressed=True)
    mouse(opened, "mouseReleased", *end)
    assert output(opened) == "Shown: step 20 to 40"
    wider = opened.evaluate(drawn)
    assert wider == pytest.approx([5.4 * width for width in before], rel=0.03)  # 108 steps of the axis over 20
    letters = f"""[...document.querySelectorAll('{LOSSES} text')].filter(text => text.closest('[data-t]')
      && text.getAttribute('visibility') !== 'hidden').map(text => text.textContent)"""
    assert opened.evaluate(letters) == ["30"]
    mouse(opened, "mouseMoved", *point_at(opened, 49.5))
    assert output(opened).startswith("step 30: ")
    opened.evaluate(f"document.querySelector('{LOSSES}').dispatchEvent(new MouseEvent('dblclick'))")
    assert opened.evaluate(drawn) == pytest.approx(before, abs=2)
    assert opened.evaluate(letters) == ["0", "15", "30", "45", "60", "75", "90"]
    assert output(opened) == ""


def test_the_keyboard_reaches_values_and_zoom(opened: Browser) -> None:
    opened.evaluate(f"document.querySelector('{LOSSES}').parentNode.querySelector('summary').focus()")
    key(opened, "Enter")
    key(opened, "Tab")
    for _ in range(3):
        key(opened, "ArrowRight")
    first = output(opened)
    key(opened, "ArrowRight")
    steps = [int(text.split()[1].removesuffix(":")) for text in (first, output(opened))]
    assert steps[1] == steps[0] + 1
    key(opened, "Tab")
    key(opened, "Enter")
    assert re.fullmatch(r"Shown: step \d+ to \d+", output(opened))
    key(opened, "Tab")
    key(opened, "Enter")
    assert output(opened) == ""


def test_the_chart_readout_shows_event_names_without_heights_and_no_bound_values(opened: Browser) -> None:
    """Event marks have no height to read, and lines of bounds have no values to read."""
    selector = "svg[aria-label*='JIT events']"
    box = place(opened, selector)
    texts = []
    for share in range(20, 96, 3):
        mouse(opened, "mouseMoved", box["x"] + share / 100 * box["width"], box["y"] + box["height"] / 2)
        texts.append(
            opened.evaluate(f"document.querySelector(`{selector}`).parentNode.querySelector('output').textContent")
        )
    assert all(re.fullmatch(r"seconds since the worker started [\d.]+: [a-z ·]*", text) for text in texts)
    assert any(text.endswith("compile · load") for text in texts)
    names = opened.evaluate("[...document.querySelectorAll('[data-s]')].map(one => one.dataset.s)")
    assert not [name for name in names if name.startswith(("tolerance", "bound", "demanded", "noise", "first"))]


# --- the filter -------------------------------------------------------------------------------------------------


def choose(browser: Browser, label: str, value: str) -> None:
    browser.evaluate(
        f"""(() => {{
          const labels = [...document.querySelectorAll('.filter label')];
          const input = labels.find(label => label.textContent.startsWith('{label}')).querySelector('select, input');
          input.value = `{value}`;
          input.dispatchEvent(new Event('input', {{bubbles: true}}));
        }})()"""
    )


def seen(browser: Browser) -> tuple[list[str], list[str]]:
    """Claims of the cards and of the rows that are in sight."""
    cards, rows = (browser.evaluate(f"{which}.map(one => one.dataset.claim)") for which in (CARDS, ROWS))
    return cards, rows


@pytest.mark.parametrize(
    ("label", "value", "claims"),
    [
        ("Verdict", "violated", ["F-GRAPH-BWD-001"]),
        ("Verdict", "not run", ["F-PTX-001"]),
        ("Claim", "F-GRAPH-BWD-001", ["F-GRAPH-BWD-001", "F-GRAPH-BWD-001"]),
        ("Words", "every KERNEL is compiled before", ["C-PREWARM-001"]),
        ("Words", "SIGKILL", ["F-GRAPH-BWD-002"]),
    ],
)
def test_each_filter_of_the_report_page_selects_cards_and_rows_of_claims(
    opened: Browser, label: str, value: str, claims: list[str]
) -> None:
    everything = seen(opened)
    choose(opened, label, value)
    listed = [] if value == "not run" else claims  # what was not run has no row, and its cards are folded
    assert seen(opened) == (claims, listed)
    assert opened.evaluate(f"{CARDS}.every(card => card.checkVisibility())")
    assert opened.evaluate("document.querySelector('.filter output').textContent") == f"{len(claims)} of 7 cards"
    click(opened, ".filter button")
    assert seen(opened) == everything
    assert opened.evaluate("document.querySelector('.filter output').textContent") == ""


def test_following_a_link_to_a_filtered_out_card_shows_the_card(opened: Browser) -> None:
    choose(opened, "Verdict", "violated")
    target = opened.evaluate("[...document.querySelectorAll('article.card.held[hidden]')].at(-1).id")
    opened.evaluate(
        f"new Promise(done => {{ addEventListener('hashchange', () => done()); location.hash = '{target}'; }})"
    )
    top = opened.evaluate(f"document.getElementById('{target}').getBoundingClientRect().top")
    assert 0 <= top < 900
    assert opened.evaluate(f"document.getElementById('{target}').checkVisibility()")


def test_the_copy_button_copies_the_command(opened: Browser) -> None:
    click(opened, "[data-copy]")  # the page must have the focus
    opened.evaluate("document.addEventListener('copy', () => { window.copied = String(getSelection()); })")
    click(opened, "#reproduce ~ .tool button")
    assert opened.evaluate("window.copied") == "harness verify contracts/ --gate"
    assert opened.evaluate("document.querySelector('#reproduce ~ .tool output').textContent") == "Copied."


# --- every state ------------------------------------------------------------------------------------------------


def in_state(browser: Browser, state: str) -> None:
    if state == "zoomed":
        browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        browser.evaluate("document.querySelectorAll('figure details button:first-of-type').forEach(one => one.click())")
        assert output(browser).startswith("Shown: ")
    elif state == "filtered":
        choose(browser, "Verdict", "held")
        assert len(seen(browser)[0]) == 3
    else:
        choose(browser, "Words", "nobody wrote this")
        assert seen(browser) == ([], [])


STATES = [*product(["filtered", "nothing left", "zoomed"], ["light", "dark", "phone-light", "phone-dark"])]
# Each state, both colours and both widths; with everything open, the controls are seen in both.
QUICK = [("filtered", "phone-dark"), ("nothing left", "light"), ("zoomed", "light"), ("zoomed", "phone-dark")]


@pytest.mark.parametrize("state_and_screen", slow_but(QUICK, STATES), ids=" ".join)
def test_axe_finds_no_violation_in_any_state(
    browser: Browser, axe: str, report: Path, state_and_screen: tuple[str, str]
) -> None:
    """It sees one row, table and card of each shape: all of the page without script, which has the same."""
    state, screen = state_and_screen
    found = check(browser, report, [SCREENS[screen]], axe, one_of_each=SCREENS, then=lambda one: in_state(one, state))
    assert found == []


@pytest.mark.parametrize("screen", slow_but(["light"], ["light", "phone-dark"]))
def test_axe_finds_no_violation_on_a_page_without_script(browser: Browser, axe: str, report: Path, screen: str) -> None:
    bare = page().replace(f"<script>{script()}</script>", "")
    assert bare != page()
    report.write_text(bare, encoding="utf-8")
    found = check(browser, report, [SCREENS[screen]], axe, one_of_each={"phone-dark"})
    assert found == ["report.html " + screen + ": 0 scripts"]


def test_a_page_without_javascript_has_no_interactive_tools(browser: Browser, report: Path) -> None:
    tools = f"document.querySelectorAll('{TOOLS}').length"
    show(browser, report, LIGHT)
    assert browser.evaluate(tools) > 10
    show(browser, report, SCREENS["no-javascript"])
    assert browser.evaluate(tools) == 0


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_never_scrolls_sideways(browser: Browser, report: Path, width: int) -> None:
    show(browser, report, Variant("narrow", width=width))
    in_state(browser, "zoomed")
    assert browser.evaluate("document.documentElement.scrollWidth") == width


# --- hostile text -----------------------------------------------------------------------------------------------


def test_the_page_script_inserts_no_markup_and_evaluates_no_code() -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|setTimeout|fetch|http", script()
    )


def test_hostile_text_stays_text_after_every_page_interaction(browser: Browser, tmp_path: Path) -> None:
    report = tmp_path / "hostile.html"
    report.write_text(render(hostile_view(HOSTILE)), encoding="utf-8")
    show(browser, report, LIGHT)
    count = "document.querySelectorAll('img, b, i, iframe, script').length"
    before = browser.evaluate(count)
    everywhere = """(() => {
      for (const button of document.querySelectorAll('.tool button')) button.click();
      for (const plot of document.querySelectorAll('svg')) {
        const {left, width, top} = plot.getBoundingClientRect();
        for (let at = 0; at < width; at += 5) plot.onpointermove?.({buttons: 0, clientX: left + at, clientY: top + 50});
      }
      for (const input of document.querySelectorAll('.filter select')) for (const option of input.options) {
        input.value = option.value;
        input.dispatchEvent(new Event('input', {bubbles: true}));
      }
    })()"""
    browser.evaluate(everywhere)
    assert browser.evaluate(count) == before
    events: list[dict[str, Any]] = browser.events
    assert not [one for one in events if one.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}]
    assert not [one for one in events if one.get("method") == "Page.javascriptDialogOpening"]
