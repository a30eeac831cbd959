"""Which units share a card, and where a claim's grounds stand."""

from __future__ import annotations

import re
from typing import Any

import pytest
from report_page import Page
from report_views import contract, decided_by, verdict, view_with

from harness.judging.verdict import Demanded, Figure, Status, Verdict
from harness.report.cards import Card, by_contract, cards, claim_rows
from harness.report.html import render
from harness.report.view import ReportView


def held(workload: str, value: float, **changes: Any) -> Verdict:
    return verdict("F-GRAPH-BWD-001", workload, figures={"difference": Figure(value=value)}, **changes)


def cards_of(*verdicts: Verdict) -> list[Card]:
    return cards(view_with(*verdicts, contracts=[contract()]), [])


def test_a_claim_that_passed_on_several_workloads_has_one_card_with_a_column_each() -> None:
    [card] = cards_of(held("a", 0.5), held("b", 0.25))
    assert card.workloads == ["a", "b"]
    assert [unit.anchor for unit in card.units] == ["unit-1", "unit-2"]
    assert card.figures == [("difference", ["0.5", "0.25"])]
    assert card.denominators == [("steps", ["100", "100"])]


def test_a_figure_that_one_workload_lacks_is_shown_as_a_dash() -> None:
    [card] = cards_of(held("a", 0.5), verdict("F-GRAPH-BWD-001", "b"))
    assert card.figures == [("difference", ["0.5", "–"])]


def test_each_unit_that_did_not_pass_has_a_separate_card() -> None:
    for status in (Status.FAIL, Status.INCONCLUSIVE, Status.ERROR):
        found = cards_of(held("a", 1.0, status=status), held("b", 2.0, status=status))
        assert [card.workloads for card in found] == [["a"], ["b"]]


def test_units_with_different_reasons_mechanisms_or_claims_have_separate_cards() -> None:
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


def test_the_first_card_of_a_claim_shows_the_contracts_reasons_and_further_cards_link_to_it() -> None:
    found = cards_of(held("a", 1.0), held("b", 1.0, status=Status.FAIL))
    assert [(card.workloads, card.grounds) for card in found] == [(["b"], None), (["a"], ("unit-2", "b"))]


def test_every_unit_of_a_shared_card_can_be_linked_to() -> None:
    view = view_with(held("a", 0.5), held("b", 0.25), contracts=[contract()])
    page = render(view)
    for anchor in ("unit-1", "unit-2"):
        assert page.count(f'id="{anchor}"') == 1
        assert page.count(f'href="#{anchor}"') == (2 if anchor == "unit-1" else 1)  # the page begins with the first
    assert page.count("Bitwise is ours") == 1


def test_every_figure_of_a_unit_is_in_its_card() -> None:
    figures = {f"ratio.process_{place}": Figure(value=1.0, unit="x") for place in range(64)}
    [card] = cards(view_with(verdict("F-GRAPH-BWD-003", figures={**figures, "mean_ratio": Figure(value=1.0)})), [])
    assert card.figures[-1][0] == "trimmed mean ratio"


def gate(contracts: int, claims: int) -> ReportView:
    """Contracts of so many claims each; the last claim of the last contract is violated."""
    verdicts = [
        verdict(
            f"CLAIM-{number}",
            contract=f"contract-{place}",
            **decided_by(Demanded("steps_differing", 0, "none", 0, "steps differ", of=100)),
        )
        for place in range(contracts)
        for number in range(claims)
    ]
    last = verdicts[-1].model_copy(update={"status": Status.FAIL, "reason": "differs", "decided": None})
    return view_with(*verdicts[:-1], last)


def test_a_gate_page_groups_units_by_contract_with_failing_units_first() -> None:
    page = render(gate(3, 4))
    rows = re.findall(r'scope="rowgroup" colspan="6">(.+?) <small>(.+?)</small>', page)
    assert rows == [(f"contract-{number}", f"{held} of 4 units held") for number, held in ((2, 3), (0, 4), (1, 4))]
    cards = re.findall(r'<article class="card ([a-z-]+)"', page)
    assert (cards[0], set(cards[1:])) == ("violated", {"held"})
    assert re.findall(r'<h3 class="contract">(.+?)</h3>', page) == [f"contract-{n}: what held" for n in range(3)]


def test_a_passing_unit_is_one_folded_line_with_its_deciding_figure() -> None:
    page = render(gate(3, 4))
    [opened] = re.findall(r'<article class="card violated".+?</article>', page, re.DOTALL)
    assert "<details><summary><h3" not in opened
    lines = re.findall(r"<details><summary><h3.+?</h3>.*?<small>(.+?)</small></summary>", page, re.DOTALL)
    assert lines == ["0 of 100 steps differ, none may, counted over 100 steps"] * 11


def test_the_first_screen_of_a_large_gate_lists_only_units_that_did_not_pass() -> None:
    rows = re.findall(r'<tr data-verdict="([a-z-]+)"', render(gate(3, 12)))
    assert rows == ["violated"]
    assert len(re.findall(r'<tr data-verdict="([a-z-]+)"', render(gate(3, 10)))) == 30


@pytest.mark.parametrize("claims", [4, 31])
def test_the_page_of_a_part_of_a_gate_names_the_contracts_of_which_nothing_was_run(claims: int) -> None:
    """The first contract held, and a machine without a GPU runs nothing of the others."""
    units = gate(3, claims).verdicts
    missing = {"status": Status.NOT_RUN, "reason": "needs_cuda", "message": "needs CUDA", "decided": None}
    view = view_with(*units[:claims], *[unit.model_copy(update=missing) for unit in units[claims:]])
    held, others = f"{claims} of {claims} units held", "not run (needs CUDA)"
    expected = [("contract-0", held, claims if claims <= 30 else 0), ("contract-1, contract-2", others, 0)]
    assert [(name, sentence, len(rows)) for name, sentence, rows in by_contract(view, claim_rows(view))] == expected
    assert f"contract-1, contract-2 {others}" in Page(render(view)).words()
    assert by_contract(view_with(*view.verdicts[claims:]), []) == []


def test_a_fold_lists_all_claims_that_were_not_run() -> None:
    units = [verdict(f"CLAIM-{number}", status=Status.NOT_RUN, message="needs CUDA") for number in range(70)]
    [listed] = re.findall(r"<summary>70 units, by claim:</summary> (.+?)</details>", render(view_with(*units)))
    assert listed.split(", ") == [unit.claim for unit in units]


def test_a_name_in_a_narrow_column_may_break_after_an_underscore() -> None:
    figures = {"exceeded_bound": Figure(value="max_relative_difference")}
    page = render(view_with(verdict("F-GRAPH-BWD-001", "a", Status.FAIL, figures=figures)))
    assert "<td>max_<wbr>relative_<wbr>difference</td>" in page
