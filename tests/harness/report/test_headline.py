from __future__ import annotations

from dataclasses import replace

import pytest
from report_views import CONTRACT, contract, header, verdict, view_of, view_with, waiver, whole_drill_view

from harness.errors import ExitCode
from harness.judge.verdict import Figure, Status
from harness.report.headline import headline, undecided
from harness.report.view import ReportView

PASS, FAIL, OPEN, NOT_RUN, ERROR = Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_RUN, Status.ERROR


@pytest.mark.parametrize(
    ("statuses", "gate", "code"),
    [
        ((PASS, FAIL, ERROR), False, ExitCode.ERROR),
        ((PASS, FAIL, NOT_RUN), True, ExitCode.VIOLATED),
        ((PASS, NOT_RUN), False, ExitCode.HELD),
        ((PASS, NOT_RUN), True, ExitCode.UNDECIDED),
        ((PASS, OPEN), True, ExitCode.UNDECIDED),
        ((PASS, PASS), True, ExitCode.HELD),
        ((OPEN, NOT_RUN), False, ExitCode.UNDECIDED),
        ((), False, ExitCode.UNDECIDED),
        ((), True, ExitCode.UNDECIDED),
    ],
)
def test_the_first_row_of_the_table_that_applies(statuses: tuple[Status, ...], gate: bool, code: ExitCode) -> None:
    assert headline(view_of(*statuses, gate=gate)).code is code


def test_a_closed_gate_says_how_many_units_are_open() -> None:
    assert (
        headline(view_of(PASS, OPEN, NOT_RUN, gate=True)).sentence
        == "The gate is closed: 2 planned units were not decided."
    )


def test_a_gate_over_a_part_of_the_contracts_names_the_part() -> None:
    narrowed = {"claims": ["A-1", "A-2"], "workloads": ["tiny"]}
    assert headline(view_of(PASS, gate=True, header=header(narrowed=narrowed))).sentence == (
        "The gate is open: every planned unit was decided and held. "
        "Only a part of the contracts was planned: claims: A-1, A-2; workloads: tiny."
    )


def test_a_gate_over_everything_names_no_part() -> None:
    sentence = headline(view_of(PASS, gate=True)).sentence
    assert sentence == "The gate is open: every planned unit was decided and held."


@pytest.mark.parametrize("gate", [False, True])
def test_a_survivor_of_a_drill_counts_as_a_violation_though_all_controls_held(gate: bool) -> None:
    shown = headline(whole_drill_view(killed=[True, False, True], gate=gate))
    assert shown.code is ExitCode.VIOLATED
    assert shown.sentence == "1 of 3 planted faults survived: those claims prove nothing."


def test_a_drill_without_survivors_says_so() -> None:
    shown = headline(whole_drill_view(killed=[True, True]))
    assert (shown.code, shown.sentence) == (ExitCode.HELD, "All 2 planted faults were killed.")


def test_a_drill_whose_control_broke_is_an_error_whatever_survived() -> None:
    assert headline(whole_drill_view(ERROR, killed=[False])).code is ExitCode.ERROR


def test_a_record_beside_an_ordinary_run_tells_of_another_one() -> None:
    """Reports show the last drill's rows with each claim."""
    view = whole_drill_view(killed=[False])
    assert headline(replace(view, header=header())).code is ExitCode.HELD


def _waived(*, expired: bool) -> ReportView:
    return view_of(PASS, FAIL, header=header(waivers=[waiver("w1", expired=expired)]))


def test_a_live_waiver_takes_the_violation_away_and_is_counted_apart() -> None:
    view = _waived(expired=False)
    assert headline(view).code is ExitCode.HELD
    assert view.count_line() == "2 planned · 1 held · 0 violated · 0 undecided · 0 not run · 0 errors · 1 waived"


def test_an_expired_waiver_changes_nothing() -> None:
    view = _waived(expired=True)
    assert headline(view).code is ExitCode.VIOLATED
    assert view.count_line() == "2 planned · 1 held · 1 violated · 0 undecided · 0 not run · 0 errors"


def test_nothing_but_waived_violations_is_not_a_success() -> None:
    assert headline(view_of(FAIL, header=header(waivers=[waiver("w0")]))).code is ExitCode.UNDECIDED


def test_undecided_units_of_one_reason_are_one_entry_with_what_would_decide_them() -> None:
    cuda = {"reason": "needs_cuda", "message": "needs CUDA"}
    verdicts = [verdict("A", "w", NOT_RUN, **cuda), verdict("B", "w", NOT_RUN, **cuda), verdict("C", "w", PASS)]
    (group,) = undecided(verdicts)
    assert [unit.claim for unit in group.units] == ["A", "B"]
    assert group.remedy == "run it on a machine with a CUDA device"


def test_the_judges_own_estimate_of_processes_is_the_remedy() -> None:
    figures = {"processes_to_decide": Figure(value=14)}
    (group,) = undecided([verdict("A", "w", OPEN, reason="undecided_ratio", figures=figures)])
    assert group.remedy == "about 14 processes would probably decide it"


def test_a_header_without_units_has_no_evidence_for_a_verdict() -> None:
    view = view_with(verdict("F-GRAPH-BWD-001"), contracts=[contract()])
    assert view.runs_of(CONTRACT["id"], "F-GRAPH-BWD-001", "tiny") == []
