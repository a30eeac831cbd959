"""Which card a plot stands in, and who leads there."""

from __future__ import annotations

import re

from report_views import full_view, verdict, view_with

from harness.judging.verdict import Status
from harness.report.blocks import JudgedPlot, Part, Section, Unit
from harness.report.cards import cards
from harness.report.charts.svg import Plot
from harness.report.html import Figure, Placed, placed, render

PLOT = Plot("0 0 1 1", "drawn", {}, "what it shows", 1, 1)


def unit(claim: str, workload: str = "tiny") -> Unit:
    made = verdict(claim, workload)
    return made.contract, claim, workload


def placed_for(*units: Unit) -> Placed:
    """A plot of these units, beside the cards of a held claim on two workloads, a failed one and one without plots."""
    view = view_with(
        verdict("HELD", "tiny"), verdict("HELD", "large"), verdict("FAILED", status=Status.FAIL), verdict("OTHER")
    )
    part = Part("part", judged=[JudgedPlot(PLOT, frozenset(units))])
    return placed([Section("loss", "Losses", "", [part])], cards(view, []))


def test_a_plot_is_in_the_card_of_its_unit_and_its_section_links_to_the_card() -> None:
    found = placed_for(unit("HELD", "large"))
    assert found.figures == {"unit-1": [Figure("plot-1", "Losses, large", PLOT)]}
    [part] = found.sections[0].parts
    assert (part.plots, part.judged, part.drawn_with) == ([], [], [("unit-1", "HELD")])


def test_a_plot_of_several_units_is_in_the_first_card_and_other_cards_link_to_it() -> None:
    found = placed_for(unit("HELD"), unit("FAILED"))
    assert found.figures == {
        "unit-3": [Figure("plot-1", "Losses, tiny", PLOT)],
        "unit-1": [Figure("plot-1", "Losses, tiny, with FAILED")],
    }


def test_a_plot_without_a_card_stays_in_its_section() -> None:
    found = placed_for(unit("GONE"))
    assert found.figures == {}
    [part] = found.sections[0].parts
    assert (part.plots, part.drawn_with) == ([PLOT], [])


def test_every_plot_is_on_the_page_once() -> None:
    page = render(full_view())
    inside = [len(re.findall('class="plot"', card)) for card in re.findall("<article.*?</article>", page, re.DOTALL)]
    assert sum(inside) == page.count('class="plot"') == 7
    judged = re.findall(r'<article class="card.*?</article>', page, re.DOTALL)
    assert sum('class="plot"' in card for card in judged) == 5
    assert page.count("<figure id=") == 6
