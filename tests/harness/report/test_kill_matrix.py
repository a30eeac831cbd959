"""A drill's page leads with its faults by claims."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from published_pages import REPORTS
from report_page import Page
from report_views import CONTRACT, contract, drilled, whole_drill_view

from harness.judging.verdict import Status
from harness.report.html import render
from harness.report.sections.kill_matrix import Cell, Column, KillMatrix, groups, kill_matrix
from harness.report.view import ReportView
from harness.run_directory.verdict_file import DrillRecord, NotDrilled, Row, read_record

RECORDS = sorted(REPORTS.rglob("drill.json"))
FIRST, SECOND = "F-GRAPH-BWD-001", "CGB-EQ-001"


def row(claim: str, fault: str, *, killed: bool = True, upstream: bool | None = None, of: str = "") -> Row:
    [made] = drilled(killed=[killed]).rows
    changes = {"claim": claim, "fault": fault, "upstream_alone_passes": upstream, "contract": of or made.contract}
    return made.model_copy(update=changes)


def drill_of(*rows: Row, not_run: tuple[tuple[str, str], ...] = ()) -> ReportView:
    left = [
        NotDrilled(contract=CONTRACT["id"], claim=claim, fault=fault, reason="needs_cuda", message="no device")
        for claim, fault in not_run
    ]
    record = drilled(killed=[]).model_copy(
        update={"rows": list(rows), "not_run": left, "planned": len(rows) + len(left)}
    )
    return replace(whole_drill_view(killed=[]), drill=record)


def matrix(view: ReportView) -> KillMatrix:
    found = kill_matrix(view)
    assert found is not None
    return found


def column(name: str, *faults: str) -> Column:
    return Column(name, "", "", ("held", "✓"), {fault: Cell("killed") for fault in faults}, "")


def table_rows(page: str) -> list[list[str]]:
    """The words of each row of the first table of faults, a string a cell."""
    [found, *_] = re.findall(r'<table class="matrix">.*?</table>', page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", found)
    return [
        [" ".join(re.sub("<[^>]+>", "", cell).split()) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", one)]
        for one in rows
    ]


def test_the_kill_matrix_shows_word_and_sign_for_each_fault_of_each_claim() -> None:
    view = drill_of(
        row(FIRST, "caught"),
        row(SECOND, "caught", killed=False),
        row(FIRST, "alone"),
        not_run=((FIRST, "unplanted"), (SECOND, "unplanted")),
    )
    assert table_rows(render(view)) == [
        ["", FIRST, SECOND],
        ["without a fault", "✓ held", "– not run"],
        ["killed", "2 of 3", "0 of 2"],
        ["caught", "✓ killed", "✗ survived"],
        ["unplanted", "– not run", "– not run"],
        ["alone", "✓ killed", "·not planned"],
    ]


def test_the_kill_matrix_is_a_scrollable_table_with_headers_and_a_caption() -> None:
    page = render(drill_of(row(FIRST, "caught"), row(SECOND, "caught")))
    [table] = re.findall(r'<div class="scroll"[^>]*>\s*<table class="matrix">.*?</table>', page, re.DOTALL)
    assert table.startswith('<div class="scroll" tabindex="0" role="region" aria-label="Faults of F-GRAPH-BWD-001, CGB')
    assert re.findall(r'<th scope="col">(?:<a [^>]*>)?([^<]+)', table) == [FIRST, SECOND]
    assert re.findall(r'<th scope="row">([^<]+)', table) == ["without a fault", "killed", "caught"]
    assert "<caption" in table


def test_the_kill_matrix_marks_and_counts_faults_that_upstreams_number_would_pass() -> None:
    view = drill_of(
        row(FIRST, "slips", upstream=True), row(FIRST, "caught", upstream=False), row(FIRST, "unreached", upstream=None)
    )
    page = render(view)
    rows = {cells[0]: cells[1] for cells in table_rows(page)}
    assert rows["tolerance would pass"] == "1 of 2"
    assert rows["slips"] == "✓ killed t, the tolerance alone would pass it"
    assert (rows["caught"], rows["unreached"]) == ("✓ killed", "✓ killed")
    assert "The tolerances alone would have let 1 of 2 pass" in Page(page).words()
    [contract_block] = matrix(view).contracts
    assert contract_block.upstream is not None
    assert contract_block.upstream.rows[0][2:] == ["1 of 2", "slips"]


def test_a_drill_without_upstream_numbers_does_not_speak_of_them() -> None:
    assert "olerance" not in Page(render(drill_of(row(FIRST, "caught")))).words().split("What was seen")[0]


def test_a_survivor_in_the_kill_matrix_links_to_its_expected_and_observed_verdict() -> None:
    page = render(drill_of(row(FIRST, "killed"), row(FIRST, "one", killed=False), row(SECOND, "two", killed=False)))
    links = re.findall(r'<td class="survived"><a href="#(survivor-\d)">', page)
    targets = dict(re.findall(r'<tr id="(survivor-\d)"><th>([^<]+)', page))
    assert [targets[link] for link in links] == ["one", "two"]
    expected_and_seen = "FAIL differs first_differing_step=1 FAIL differs first_differing_step=1 The claim demands"
    assert f"one {FIRST} {expected_and_seen}" in Page(page).words()


def test_the_kill_matrix_lists_contracts_with_survivors_first_and_unrun_faults_last() -> None:
    rows = [row(FIRST, "a", of="planted"), row(FIRST, "b", of="broken"), row(FIRST, "c", of="broken", killed=False)]
    found = matrix(drill_of(*rows, not_run=((FIRST, "d"),)))
    assert [block.name for block in found.contracts] == ["broken", "planted", CONTRACT["id"]]
    assert [fault for fault, _ in found.contracts[0].groups[0].rows] == ["c", "b"]


def test_a_fault_that_survived_in_one_of_two_drills_counts_as_survived() -> None:
    """A drill record can be joined from several drills."""
    for order in ([True, False], [False, True]):
        found = matrix(drill_of(*(row(FIRST, "twice", killed=killed) for killed in order)))
        assert found.contracts[0].groups[0].rows[0][1][0].word == "survived"


def test_messages_of_a_drill_record_are_not_shown_because_nothing_verifies_them() -> None:
    view = drill_of(row(FIRST, "one", killed=False), not_run=((FIRST, "a"),))
    assert view.drill is not None
    rows = [one.model_copy(update={"message": "FORGED"}) for one in view.drill.rows]
    left = [one.model_copy(update={"message": "FORGED"}) for one in view.drill.not_run]
    record = view.drill.model_copy(update={"rows": rows, "not_run": left})
    assert "FORGED" not in render(replace(view, drill=record))


def test_the_kill_matrix_states_why_faults_were_not_run() -> None:
    found = matrix(drill_of(not_run=((FIRST, "a"), (FIRST, "b"))))
    assert found.lead == "0 of 2 planned faults killed, 0 survived, 2 not run."
    assert found.left_out == ["Not run, 2: needs_cuda. The claim needs a CUDA device, and this machine has none."]
    assert [name for _, name, _ in found.legend] == ["not run"]


def test_the_kill_matrix_shows_a_control_that_did_not_pass() -> None:
    view = replace(drill_of(row(FIRST, "a")), verdicts=whole_drill_view(Status.ERROR, killed=[]).verdicts)
    assert table_rows(render(view))[1] == ["without a fault", "! error"]


def test_a_run_has_a_kill_matrix_only_together_with_its_drill() -> None:
    assert kill_matrix(replace(drill_of(row(FIRST, "a")), header=whole_drill_view(killed=[]).header)) is not None
    view = drill_of(row(FIRST, "a"))
    verified = replace(view, header=view.header.model_copy(update={"purpose": "verify"}))
    assert kill_matrix(verified) is None
    page = render(replace(verified, drill_named=True))
    assert page.index('id="claims"') < page.index('id="drill"')  # what was verified comes first
    assert kill_matrix(replace(verified, drill=None)) is None
    assert kill_matrix(drill_of()) is None


def test_claims_with_equal_faults_share_a_table_in_the_kill_matrix() -> None:
    alike = [column("a", "x", "y"), column("b", "x", "y"), column("other", "z")]
    assert [[one.name for one in group] for group in groups(alike)] == [["a", "b"], ["other"]]


def test_a_claim_with_few_common_faults_has_its_own_kill_table() -> None:
    """In a common table of all three claims, only 14 of 36 cells would be filled."""
    many = column("many", *(f"f{number}" for number in range(12)))
    found = groups([many, column("one", "f0"), column("two", "f1")])
    assert [[each.name for each in group] for group in found] == [["many", "one"], ["two"]]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_published_drill_has_every_fault_once_in_tables_that_are_at_least_half_filled(path: Path) -> None:
    record = read_record(path)
    found = matrix(replace(drill_of(), drill=record))
    shown: Counter[tuple[str, str, str, str]] = Counter()
    for block in found.contracts:
        for group in block.groups:
            words = [cell.word for _, cells in group.rows for cell in cells]
            assert words.count("not planned") <= len(words) / 2
            for fault, cells in group.rows:
                for one, cell in zip(group.columns, cells, strict=True):
                    shown[block.name, one.name, fault, cell.word] += cell.word != "not planned"
    assert +shown == Counter(pairs(record))


def pairs(record: DrillRecord) -> list[tuple[str, str, str, str]]:
    ended = [(each.contract, each.claim, each.fault, "killed" if each.killed else "survived") for each in record.rows]
    return [*ended, *((each.contract, each.claim, each.fault, "not run") for each in record.not_run)]


def test_the_kill_matrix_page_names_the_trainer_of_the_contract() -> None:
    assert contract().system in Page(render(drill_of(row(FIRST, "a")))).words()


@pytest.mark.parametrize("statuses", [(Status.FAIL, Status.PASS), (Status.PASS, Status.FAIL)])
def test_the_kill_matrix_shows_the_worst_of_several_controls(statuses: tuple[Status, Status]) -> None:
    """Faults that need CUDA have a separate control.

    A control that held does not replace a control that did not hold.
    """
    view = replace(whole_drill_view(*statuses, killed=[True]), drill=drill_of(row(FIRST, "caught")).drill)
    [[column]] = [group.columns for group in matrix(view).contracts[0].groups]
    assert (column.control, column.anchor) == (("violated", "✗"), f"unit-{1 + statuses.index(Status.FAIL)}")


def test_the_kill_matrix_counts_the_omitted_reasons() -> None:
    view = drill_of(row(FIRST, "caught"), not_run=tuple((FIRST, f"left{at}") for at in range(9)))
    assert view.drill is not None
    left = [one.model_copy(update={"reason": f"reason_{min(at, 6)}"}) for at, one in enumerate(view.drill.not_run)]
    told = matrix(replace(view, drill=view.drill.model_copy(update={"not_run": left}))).left_out
    assert told[0].startswith("Not run, 3: reason_6")
    assert told[-1] == "Not run, 2: for 2 other reasons."


def test_the_kill_matrix_names_every_fault_that_upstreams_number_would_pass() -> None:
    faults = [f"a_fault_with_a_long_name_{place}" for place in range(20)]
    [contract] = matrix(drill_of(*(row(FIRST, fault, upstream=True) for fault in faults))).contracts
    assert contract.upstream is not None
    assert contract.upstream.rows[0][-1] == ", ".join(faults)


def test_the_observed_verdict_of_a_survivor_is_explained() -> None:
    found = matrix(drill_of(row(FIRST, "alive", killed=False))).survivors
    assert found is not None
    assert "The claim demands equal bits, and a value differs." in found.rows[0]
