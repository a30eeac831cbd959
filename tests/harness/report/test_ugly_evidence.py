"""Evidence that nobody would wish for: odd numbers, a million steps, hostile text in every field."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from budget import slow_but
from calls_made import counted
from hostile_views import HOSTILE, hostile_view
from report_page import Page, images, parsed, with_losses
from report_views import full_view, loss_curve, small_view, verdict

from harness.report.html import render


@pytest.fixture(scope="module")
def full() -> tuple[str, Page]:
    html = render(full_view())
    return html, Page(html)


@pytest.mark.parametrize(
    "losses",
    [
        {"graphed": [], "ungraphed": []},
        {"graphed": [1.0], "ungraphed": []},
        {"graphed": [np.nan] * 3, "ungraphed": [np.nan] * 3},
        {"graphed": [1.0, np.inf], "ungraphed": [1.0, -np.inf]},
        {"graphed": [1e300, 1.0], "ungraphed": [-1e300, 1.0]},
        {"graphed": [5e-324], "ungraphed": [0.0]},
        {"graphed": [1.0] * 5, "ungraphed": [1.0] * 3},
        {"only": [1.0]},
    ],
)
def test_series_with_any_values_can_be_plotted(losses: dict[str, Any]) -> None:
    page = Page(render(with_losses(**losses)))
    assert "Claims" in page.words()
    for svg in images(page):
        parsed(svg)


def test_a_nan_loss_of_both_arms_is_counted_in_the_report() -> None:
    page = Page(render(with_losses(ungraphed=[1.0, np.nan, 2.0], graphed=[1.0, np.nan, 2.0])))
    assert "graphed against ungraphed 3 – 0 – 1 – 0.1" in page.words()


def test_a_verdict_of_a_claim_removed_from_the_contract_has_a_card() -> None:
    view = small_view(verdicts=[verdict("GONE-001")])
    assert "This claim is not in the contract any more." in Page(render(view)).words()


def test_a_million_steps_render_without_a_call_for_each_and_keep_their_spike() -> None:
    curve = loss_curve(1_000_000)
    other = curve.copy()
    other[777_777] += 5.0
    view = with_losses(ungraphed=curve, graphed=other)
    render(with_losses(ungraphed=loss_curve(20), graphed=loss_curve(20)))  # with the first page libraries are imported
    html, calls = counted(lambda: render(view))
    assert calls < 500_000
    assert "777,777" in html
    assert len(html) < 400_000


# --- hostile text ------------------------------------------------------------------------------------------------

TEXTS = {
    "markup": HOSTILE,
    "surrogate": HOSTILE + "\ud800",
    "long": HOSTILE + "A" * 100_000,
    "dollars": "$" * 99,
    "empty": "",
}


@pytest.mark.parametrize("text", slow_but([TEXTS["markup"], TEXTS["empty"]], TEXTS.values()), ids=TEXTS.keys())
def test_hostile_text_in_every_field_neither_runs_nor_breaks_nor_prevents_the_page(
    text: str, full: tuple[str, Page]
) -> None:
    html = render(hostile_view(text))
    page = Page(html)
    assert page.open == []
    # `i`, `b`, `script`: no tag appears that the friendly page does not have.
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in full[1].tags} | {"p", "code"}
    assert all(not name.startswith("on") for _, found in page.tags for name in found)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html)
    html.encode("utf-8")
    for svg in images(page):
        parsed(svg)


def test_strings_of_100_kb_do_not_make_the_page_large() -> None:
    assert len(render(hostile_view("A" * 100_000)).encode()) < 400_000


@pytest.mark.parametrize("name", ["$", r"$\frac{$", r"$x^2$", "a$b$c"])
def test_dollar_signs_in_a_label_are_drawn_as_letters_and_not_as_mathematics(name: str) -> None:
    [image] = images(Page(render(with_losses(**{name: loss_curve(20)}))))
    # A label read as mathematics fails, or loses its dollars.
    assert name in [text.text for text in parsed(image).iter("text")]


def test_hostile_arm_names_are_plotted_as_plain_text() -> None:
    loss = loss_curve(20)
    arms = {HOSTILE: loss, "_x": loss, "日本": loss, "graphed": loss + 0.01, "ungraphed": loss}
    page = Page(render(with_losses(**arms)))
    assert len(images(page)) == 2


def test_markup_in_a_label_stays_text() -> None:
    name = """a<b>&"c'</svg>"""
    [image] = images(Page(render(with_losses(**{name: loss_curve(20)}))))
    assert name in [text.text for text in parsed(image).iter("text")]
    assert f"{name}: " in str(parsed(image).get("aria-label"))
