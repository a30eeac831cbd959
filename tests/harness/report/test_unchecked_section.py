"""Claims that no kind can judge, as the page shows them."""

from __future__ import annotations

from report_page import Page
from report_views import listing_two, small_view

from harness.report.html import render
from harness.report.sections import closing


def test_claims_without_an_executable_check_have_their_own_unjudged_section() -> None:
    section = closing.unchecked(small_view(contracts=[listing_two()]))
    assert section is not None
    assert section.title == "No executable check"
    assert section.lead.startswith("2 listed claims have no executable check. Nothing was run for them")
    [part] = section.parts
    assert part.tables[0].rows[0] == [
        "G-1",
        "Pretty <b>1</b>",
        "no number",
        "graph: proof_obligations (up/graph.yaml:5:3)",
    ]


def test_unchecked_claims_are_escaped_on_the_page() -> None:
    words = Page(render(small_view(contracts=[listing_two()]))).words()
    assert "G-2 Pretty <b>2</b> no number" in words


def test_a_contract_without_unchecked_claims_has_no_unchecked_section() -> None:
    assert closing.unchecked(small_view()) is None
