from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_views import CONTRACT, contract, drilled, header, verdict, view_of, view_with, waiver, whole_drill_view

from harness.api import drill
from harness.errors import ExitCode
from harness.judging.verdict import Figure, Status
from harness.report.headline import headline, undecided
from harness.report.html import render
from harness.report.markdown import escape, render_markdown
from harness.report.terminal import print_results
from harness.report.view import ReportView

PASS, FAIL, OPEN, NOT_RUN, ERROR = Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_RUN, Status.ERROR


@pytest.mark.parametrize(
    ("statuses", "gate", "code", "word"),
    [
        ((PASS, FAIL, ERROR), False, ExitCode.ERROR, "ERROR"),
        ((PASS, ERROR), False, ExitCode.ERROR, "ERROR"),
        ((PASS, FAIL, NOT_RUN), True, ExitCode.VIOLATED, "VIOLATED"),
        ((PASS, NOT_RUN), False, ExitCode.HELD, "PARTLY DECIDED"),
        ((PASS, OPEN), False, ExitCode.HELD, "PARTLY DECIDED"),
        ((PASS, NOT_RUN), True, ExitCode.UNDECIDED, "PARTLY DECIDED"),
        ((PASS, OPEN), True, ExitCode.UNDECIDED, "PARTLY DECIDED"),
        ((PASS, PASS), True, ExitCode.HELD, "HELD"),
        ((PASS, PASS), False, ExitCode.HELD, "HELD"),
        ((OPEN, NOT_RUN), False, ExitCode.UNDECIDED, "NOT DECIDED"),
        ((NOT_RUN, NOT_RUN), True, ExitCode.UNDECIDED, "NOT DECIDED"),
        ((OPEN,), False, ExitCode.UNDECIDED, "NOT DECIDED"),
        ((), False, ExitCode.UNDECIDED, "NOT DECIDED"),
        ((), True, ExitCode.UNDECIDED, "NOT DECIDED"),
    ],
)
def test_the_headline_follows_the_first_matching_row_of_the_table(
    statuses: tuple[Status, ...], gate: bool, code: ExitCode, word: str
) -> None:
    found = headline(view_of(*statuses, gate=gate))
    assert (found.code, found.word) == (code, word)


@pytest.mark.parametrize(
    ("statuses", "sentence"),
    [((FAIL, PASS), "1 unit is violated."), ((FAIL, PASS, FAIL, FAIL), "3 units are violated.")],
)
def test_the_headline_states_the_number_of_violated_units(statuses: tuple[Status, ...], sentence: str) -> None:
    assert headline(view_of(*statuses)).sentence == sentence


@pytest.mark.parametrize(("gate", "shut"), [(False, ""), (True, "The gate is closed: ")])
def test_a_partly_decided_headline_states_how_many_units_passed(gate: bool, shut: str) -> None:
    view = view_of(PASS, OPEN, NOT_RUN, NOT_RUN, gate=gate)
    assert headline(view).sentence == f"{shut}1 of 4 planned units held (1 undecided, 2 not run)."


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"altered": ("a.csv: changed",)},
            "vidence differs from the digests recorded with it, so nothing here is proven.",
        ),
        ({"incomplete": ("run",)}, "he run did not finish, so nothing here is proven."),
    ],
    ids=["altered", "incomplete"],
)
def test_altered_or_incomplete_evidence_never_passes(gate: bool, changes: dict[str, tuple[str]], why: str) -> None:
    found = headline(view_of(PASS, gate=gate, **changes))
    assert (found.code, found.word) == (ExitCode.ERROR, "ERROR")
    assert found.sentence.endswith(why)


def test_altered_evidence_of_a_drill_is_an_error() -> None:
    view = replace(whole_drill_view(killed=[True, True]), altered=("a.csv: changed",))
    assert headline(view).code is ExitCode.ERROR


def test_a_gate_over_a_part_of_the_contracts_names_the_part() -> None:
    narrowed = {"claims": ["A-1", "A-2"], "workloads": ["tiny"]}
    assert headline(view_of(PASS, gate=True, header=header(narrowed=narrowed))).sentence.startswith(
        "The gate is open: every planned unit was decided and held. "
        "Only a part of the claims was asked for: claims: A-1, A-2; workloads: tiny. Left out: "
    )


def test_the_headline_names_a_narrowed_part_also_without_the_gate_option() -> None:
    found = headline(view_of(PASS, header=header(narrowed={"claims": [], "workloads": ["tiny"]})))
    asked = "Every planned unit held. Only a part of the claims was asked for: workloads: tiny."
    assert (found.word, found.sentence.partition(" Left out")[0]) == ("HELD", asked)


@pytest.mark.parametrize(("count", "named"), [(6, "A-0, A-1, A-2, A-3, A-4, A-5."), (8, "A-4, A-5 and 2 more.")])
def test_the_headline_of_a_run_narrowed_to_many_claims_names_the_first_claims(count: int, named: str) -> None:
    view = view_of(PASS, header=header(narrowed={"claims": [f"A-{index}" for index in range(count)]}))
    assert headline(view).sentence.partition(" Left out")[0].endswith(named)
    assert view.narrowed().endswith(f"A-{count - 1}")


def test_the_headline_of_a_narrowed_run_names_what_was_left_out() -> None:
    narrowed = {"claims": [], "workloads": ["tiny"]}
    units = [verdict("F-GRAPH-BWD-001", "tiny"), verdict("F-PTX-001", "tiny")]
    view = replace(view_with(*units, contracts=[contract()]), header=header(narrowed=narrowed))
    assert headline(view).sentence.endswith(
        " Left out: 5 units: F-GRAPH-BWD-001 (qwen2-1.5b), CGB-EQ-001, F-GRAPH-BWD-002 and 2 more."
    )
    assert view.left_out(2) == "5 units: F-GRAPH-BWD-001 (qwen2-1.5b), CGB-EQ-001 and 3 more"
    asked_all = replace(view, header=header())
    assert "Left out" not in headline(asked_all).sentence


def test_a_drill_counts_a_claim_as_left_out_only_if_the_claim_names_a_fault() -> None:
    """A drill judges a claim on one workload, and cannot drill a claim without faults."""
    view = whole_drill_view(killed=[True])
    assert view.left_out(6) == ""
    other = whole_drill_view(killed=[])
    assert other.left_out(6) == "1 claim: F-GRAPH-BWD-001"


def test_the_headline_says_if_no_commit_contains_the_harness_that_was_run() -> None:
    """Otherwise a reader takes HELD for a statement about the commit on the page."""
    changed = view_of(PASS, header=header(environment={"git": {"commit": "4afac30f0e0c2a1d+changes"}}))
    doubt = "No commit has this harness."
    assert headline(changed).sentence == f"Every planned unit held. {doubt}"
    assert doubt in render(changed)
    stream = io.StringIO()
    print_results(changed, stream)
    assert stream.getvalue().count(doubt) == 1
    assert doubt not in headline(replace(changed, altered=("a.csv: changed",))).sentence


def test_the_headline_of_a_complete_gate_mentions_no_part() -> None:
    sentence = headline(view_of(PASS, gate=True)).sentence
    assert sentence == "The gate is open: every planned unit was decided and held."


def terminal(view: ReportView) -> str:
    """What the terminal shows, on one line."""
    out = io.StringIO()
    print_results(view, out)
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize(
    ("falsified_by", "added"),
    [
        ([[], []], " 2 claims name no fault that would break them."),
        ([["nan_tail"], []], " 1 claim names no fault that would break it."),
        ([["nan_tail"], ["nan_tail"]], ""),
    ],
)
def test_an_open_gate_states_how_many_claims_name_no_fault(falsified_by: list[list[str]], added: str) -> None:
    claims = [
        {**CONTRACT["claims"][0], "id": f"C-{index}", "falsified_by": names} for index, names in enumerate(falsified_by)
    ]
    verdicts = [verdict(claim["id"]) for claim in claims]
    view = replace(view_with(*verdicts, contracts=[contract(claims=claims)]), gate=True)
    sentence = f"The gate is open: every planned unit was decided and held.{added}"
    assert headline(view).sentence == sentence
    assert headline(replace(view, gate=False)).sentence == "Every planned unit held."
    assert escape(sentence) in render_markdown(view)
    assert sentence in render(view)
    assert f"HELD: {sentence}" in terminal(view)


@pytest.mark.parametrize("gate", [False, True])
def test_a_surviving_fault_makes_a_drill_violated_even_if_all_controls_passed(gate: bool) -> None:
    shown = headline(whole_drill_view(killed=[True, False, True], gate=gate))
    assert shown.code is ExitCode.VIOLATED
    assert shown.sentence == "1 of 3 planted faults survived: those claims prove nothing."


def test_the_headline_of_a_drill_first_names_the_controls_that_did_not_hold() -> None:
    survived = " 1 of 2 planted faults survived: those claims prove nothing."
    failed = "1 of 1 control did not hold (F-GRAPH-BWD-001): the faults of those claims prove nothing."
    for killed, sentence in (([True, False], failed + survived), ([True, True], failed)):
        shown = headline(whole_drill_view(FAIL, killed=killed))
        assert (shown.code, shown.sentence) == (ExitCode.VIOLATED, sentence)
    undecided = headline(whole_drill_view(PASS, OPEN, killed=[True, False])).sentence
    assert undecided.startswith("1 of 2 controls was not decided (F-GRAPH-BWD-001): ")
    assert undecided.endswith(survived)


def test_the_headline_of_a_drill_without_survivors_is_held() -> None:
    shown = headline(whole_drill_view(killed=[True, True]))
    assert (shown.code, str(shown)) == (ExitCode.HELD, "HELD: All 2 planted faults were killed.")


def test_a_drill_in_which_some_faults_were_not_run_is_partly_decided() -> None:
    shown = headline(whole_drill_view(killed=[True, True], not_run=3))
    assert (shown.code, shown.word) == (ExitCode.HELD, "PARTLY DECIDED")
    assert shown.sentence == "2 of 5 planned faults were planted and killed; the others were not run."


def test_the_headline_of_a_drill_without_planted_faults_is_undecided() -> None:
    shown = headline(whole_drill_view(killed=[], not_run=3))
    assert (shown.code, shown.word) == (ExitCode.UNDECIDED, "NOT DECIDED")


@pytest.mark.parametrize("status", [OPEN, NOT_RUN])
def test_a_drill_whose_control_was_not_decided_did_not_hold(status: Status) -> None:
    shown = headline(whole_drill_view(PASS, status, killed=[True, True]))
    assert (shown.code, shown.word) == (ExitCode.VIOLATED, "PARTLY DECIDED")
    found = "1 of 2 controls was not decided (F-GRAPH-BWD-001): the faults of those claims prove nothing."
    assert shown.sentence == found


def test_the_terminal_prints_the_drill_headline_of_the_page() -> None:
    assert drill.shown(drilled(killed=[True], not_run=1), None)[-1] == (
        "PARTLY DECIDED: 1 of 2 planned faults was planted and killed; the others were not run."
    )


def test_the_headline_of_a_partial_drill_states_how_many_faults_were_planned() -> None:
    """The contract names two faults, and no option on the command line selected one of them."""
    shown = headline(whole_drill_view(killed=[True]))
    assert shown.sentence == (
        "The one planted fault was killed. Only a part of the claims was asked for: faults: 1 of 2."
    )


def test_a_drill_whose_control_ended_with_an_error_is_an_error_whether_or_not_a_fault_survived() -> None:
    assert headline(whole_drill_view(ERROR, killed=[False])).code is ExitCode.ERROR


def test_a_drill_record_next_to_an_ordinary_run_does_not_change_its_headline() -> None:
    """The record is there because reports show the rows of the last drill next to each claim."""
    view = whole_drill_view(killed=[False])
    assert headline(replace(view, header=header())).code is ExitCode.HELD


@pytest.mark.parametrize(
    ("view", "counted"),
    [
        (view_of(PASS, PASS, PASS), "3 units · 3 held"),
        (view_of(PASS, FAIL, FAIL), "3 units · 1 held · 2 violated"),
        (view_of(PASS, ERROR, ERROR), "3 units · 1 held · 2 errors"),
        (view_of(OPEN), "1 unit · 1 undecided"),
        (view_of(), "0 units"),
        (whole_drill_view(killed=[True, False, False], not_run=3), "1 unit · 1 held"),
    ],
    ids=["held", "violated", "error", "undecided", "nothing", "drill"],
)
def test_the_unit_counts_follow_the_headline_word_on_every_page(view: ReportView, counted: str) -> None:
    assert view.count_line() == counted
    assert f"<strong>{headline(view).word}</strong> <b>{counted}</b>" in render(view)


def _waived(*, expired: bool) -> ReportView:
    return view_of(PASS, FAIL, header=header(waivers=[waiver("w1", expired=expired)]))


def test_a_valid_waiver_removes_the_violation_and_is_counted_separately() -> None:
    view = _waived(expired=False)
    found = headline(view)
    assert (found.code, found.word, found.style) == (ExitCode.HELD, "HELD, 1 waived", "waived")
    assert found.sentence == "Every planned unit held, or is waived (1)."
    assert view.count_line() == "2 units · 1 held · 1 waived"


@pytest.mark.parametrize(
    ("reason", "code"), [("undecided_ratio", ExitCode.HELD), ("limits_exceeded", ExitCode.UNDECIDED)]
)
def test_among_undecided_units_only_a_ratio_can_be_waived(reason: str, code: ExitCode) -> None:
    verdicts = [verdict("A", "w", PASS), verdict("B", "w", OPEN, reason=reason)]
    waived = {**waiver("w"), "claim": "B"}
    view = replace(view_of(PASS, header=header(waivers=[waived])), verdicts=verdicts, gate=True)
    assert headline(view).code is code
    line = {ExitCode.HELD: "1 held · 1 waived", ExitCode.UNDECIDED: "1 undecided"}[code]
    assert line in view.count_line()


def test_a_run_with_a_waived_violation_and_undecided_units_is_partly_decided() -> None:
    found = headline(view_of(PASS, FAIL, NOT_RUN, header=header(waivers=[waiver("w1")])))
    assert str(found) == "PARTLY DECIDED: 1 of 3 planned units held (1 not run, 1 waived)."


def test_an_expired_waiver_changes_nothing() -> None:
    view = _waived(expired=True)
    assert (headline(view).code, headline(view).word) == (ExitCode.VIOLATED, "VIOLATED")
    assert view.count_line() == "2 units · 1 held · 1 violated"


def test_a_run_that_decided_only_waived_violations_is_not_a_success() -> None:
    found = headline(view_of(FAIL, NOT_RUN, header=header(waivers=[waiver("w0")])))
    assert found.code is ExitCode.UNDECIDED
    assert str(found) == "NOT DECIDED: Nothing but waived claims was decided."


def test_undecided_units_with_the_same_reason_share_one_entry_with_a_remedy() -> None:
    cuda = {"reason": "needs_cuda", "message": "needs CUDA"}
    verdicts = [verdict("A", "w", NOT_RUN, **cuda), verdict("B", "w", NOT_RUN, **cuda), verdict("C", "w", PASS)]
    (group,) = undecided(view_with(*verdicts))
    assert [unit.claim for unit in group.units] == ["A", "B"]
    assert group.remedy == "run it on a machine with a CUDA device"


def test_the_process_estimate_of_the_judge_is_shown_as_the_remedy() -> None:
    figures = {"processes_to_decide": Figure(value=14)}
    (group,) = undecided(view_with(verdict("A", "w", OPEN, reason="undecided_ratio", figures=figures)))
    change = f"change `processes` of A in contract {CONTRACT['id']}"
    assert group.remedy == f"about 14 processes would probably be enough: {change}"


@pytest.mark.parametrize(
    ("beside", "remedy"),
    [
        (("F-GRAPH-BWD-002", "tiny"), "fix the capture first; F-GRAPH-BWD-002 says why it failed"),
        (("F-GRAPH-BWD-002", "w"), "fix the capture first"),  # of another workload
        (("CGB-EQ-001", "tiny"), "fix the capture first"),  # which judges no capture
    ],
)
def test_an_uncaptured_candidate_refers_to_the_runs_capture_claim(beside: tuple[str, str], remedy: str) -> None:
    never = verdict("F-GRAPH-BWD-001", "tiny", OPEN, reason="candidate_not_captured")
    (group,) = undecided(view_with(never, verdict(*beside, FAIL), contracts=[contract()]))
    assert group.remedy == remedy


def test_a_header_without_units_lists_no_runs_for_a_verdict() -> None:
    view = view_with(verdict("F-GRAPH-BWD-001"), contracts=[contract()])
    assert view.runs_of(CONTRACT["id"], "F-GRAPH-BWD-001", "tiny") == []
