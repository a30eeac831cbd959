"""Which units share a card, and where a claim's grounds stand."""

from __future__ import annotations

from typing import Any

from report_views import contract, verdict, view_with

from harness.judging.verdict import Figure, Status, Verdict
from harness.report.cards import Card, cards
from harness.report.html import render


def held(workload: str, value: float, **changes: Any) -> Verdict:
    return verdict("F-GRAPH-BWD-001", workload, figures={"difference": Figure(value=value)}, **changes)


def cards_of(*verdicts: Verdict) -> list[Card]:
    return cards(view_with(*verdicts, contracts=[contract()]), [])


def test_a_claim_that_held_on_several_workloads_has_one_card_with_a_column_for_each() -> None:
    [card] = cards_of(held("a", 0.5), held("b", 0.25))
    assert card.workloads == ["a", "b"]
    assert [unit.anchor for unit in card.units] == ["unit-1", "unit-2"]
    assert card.figures == [("difference", ["0.5", "0.25"])]
    assert card.denominators == [("steps", ["100", "100"])]


def test_a_figure_that_one_workload_lacks_is_a_dash_there() -> None:
    [card] = cards_of(held("a", 0.5), verdict("F-GRAPH-BWD-001", "b"))
    assert card.figures == [("difference", ["0.5", "–"])]


def test_violated_undecided_and_broken_units_stand_alone() -> None:
    for status in (Status.FAIL, Status.INCONCLUSIVE, Status.ERROR):
        found = cards_of(held("a", 1.0, status=status), held("b", 2.0, status=status))
        assert [card.workloads for card in found] == [["a"], ["b"]]


def test_units_of_other_reasons_mechanisms_or_claims_stand_apart() -> None:
    found = cards_of(
        held("a", 1.0),
        held("b", 1.0, reason="within_bound"),
        held("c", 1.0, mechanism="cuda_graph"),
        verdict("CGB-EQ-001", "a"),
    )
    assert [(card.claim, card.workloads) for card in found] == [
        ("F-GRAPH-BWD-001", ["a"]),
        ("F-GRAPH-BWD-001", ["b"]),
        ("F-GRAPH-BWD-001", ["c"]),
        ("CGB-EQ-001", ["a"]),
    ]


def test_the_grounds_stand_on_the_first_card_and_the_others_lead_there() -> None:
    found = cards_of(held("a", 1.0), held("b", 1.0, status=Status.FAIL))
    assert [(card.workloads, card.grounds) for card in found] == [(["b"], None), (["a"], ("unit-2", "b"))]


def test_every_unit_of_a_shared_card_can_be_linked_to() -> None:
    view = view_with(held("a", 0.5), held("b", 0.25), contracts=[contract()])
    page = render(view)
    for anchor in ("unit-1", "unit-2"):
        assert page.count(f'id="{anchor}"') == 1
        assert page.count(f'href="#{anchor}"') == 1
    assert page.count("Bitwise is ours") == 1


def test_every_figure_of_a_unit_stands_in_its_card() -> None:
    figures = {f"ratio.process_{place}": Figure(value=1.0, unit="x") for place in range(64)}
    [card] = cards(view_with(verdict("F-GRAPH-BWD-003", figures={**figures, "mean_ratio": Figure(value=1.0)})), [])
    assert card.figures[-1][0] == "mean ratio"
