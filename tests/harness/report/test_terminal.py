from __future__ import annotations

import io
from typing import Any

import pytest
from report_views import drill_view, full_view, listing_two, verdict, view_of, view_with, whole_drill_view

from harness.contract.schema import Workload
from harness.evidence.plan_records import Run
from harness.judge.verdict import Figure, Status
from harness.report.terminal import Progress, print_results
from harness.report.view import ReportView


def run_named(name: str) -> Run:
    workload = Workload(model="tiny", batch_size=4, seq_len=64, steps=1)
    return Run(id=name, contract="c", probe="paired", workload_name="tiny", workload=workload, arms={})


def printed(view: ReportView) -> list[str]:
    stream = io.StringIO()
    print_results(view, stream)
    return stream.getvalue().splitlines()


def test_the_count_line_comes_first_and_the_outcome_last() -> None:
    lines = printed(full_view())
    assert lines[0] == "7 planned · 3 held · 1 violated · 1 undecided · 1 not run · 1 error"
    assert lines[-1] == "ERROR: The harness, a worker, the system or the machine broke: no gate may trust this run."


def test_open_units_take_the_word_held_away() -> None:
    assert printed(view_of(Status.PASS, Status.INCONCLUSIVE))[-1] == (
        "PARTLY DECIDED: 1 of 2 planned units held (1 undecided)."
    )


def test_a_failure_reads_like_an_assertion() -> None:
    figures = {"first_differing_step": Figure(value=12), "largest_difference": Figure(value=0.5)}
    item = verdict("F-GRAPH-BWD-001", status=Status.FAIL, message="differs from step 12", figures=figures)
    lines = printed(view_with(item, contracts=full_view().contracts))
    assert lines[1:4] == [
        " violated  F-GRAPH-BWD-001 on tiny: differs from step 12",
        "           first differing step: 12",
        "           largest difference: 0.5",
    ]
    assert lines[4].startswith("           what usually causes this: A batch that was rebound")


def test_what_would_decide_the_rest_is_said() -> None:
    assert "To decide 1 unit (needs_cuda): run it on a machine with a CUDA device." in printed(full_view())


@pytest.mark.parametrize(("units", "lines"), [(5, 5), (6, 2)])
def test_many_units_that_were_not_run_for_one_reason_share_a_line(units: int, lines: int) -> None:
    why: dict[str, Any] = {"status": Status.NOT_RUN, "reason": "needs_cuda", "message": "needs CUDA: none here"}
    items = [verdict("F-GRAPH-BWD-001", workload=f"w{number}", **why) for number in range(units - 1)]
    items += [verdict("F-GRAPH-BWD-002", workload="w0", **why), verdict("F-GRAPH-BWD-003", message="fast")]
    said = printed(view_with(*items))
    assert said[1 + lines] == "     held  F-GRAPH-BWD-003 on tiny: fast"
    if units == 6:
        assert said[1:3] == [
            "  not run  6 units: needs CUDA: none here",
            "           F-GRAPH-BWD-001, F-GRAPH-BWD-002",
        ]
    else:
        assert said[1] == "  not run  F-GRAPH-BWD-001 on w0: needs CUDA: none here"


def test_a_drill_is_marked() -> None:
    assert "FIRE DRILL: The fault stale_batch was planted in this run on purpose." in printed(drill_view())


def test_a_whole_drill_says_what_it_planted_and_that_the_units_are_controls() -> None:
    told = printed(whole_drill_view(killed=[True, False]))
    assert "FIRE DRILL: 2 faults planted, 1 survived; the units are the controls, run without a fault." in told
    assert "VIOLATED: 1 of 2 planted faults survived: those claims prove nothing." in told


def test_a_drill_says_how_many_faults_were_not_run() -> None:
    told = printed(whole_drill_view(killed=[True], not_run=1))
    assert (
        "FIRE DRILL: 1 fault planted, 0 survived, 1 not run; the units are the controls, run without a fault." in told
    )


def test_markup_and_escape_sequences_in_messages_stay_text() -> None:
    item = verdict("F-GRAPH-BWD-001", message="[red]x[/red] \x1b[31m :smile: a\nb")
    lines = printed(view_with(item))
    assert lines[1] == "     held  F-GRAPH-BWD-001 on tiny: [red]x[/red] \\x1b[31m :smile: a b"


def test_long_messages_stay_on_their_line() -> None:
    item = verdict("F-GRAPH-BWD-001", message="word " * 60)
    assert len(printed(view_with(item))) == 3


def test_results_go_to_stdout_and_progress_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_results(view_of(Status.PASS))
    progress = Progress(2)
    for name in ("tiny-paired", "tiny-kernels"):
        progress(run_named(name), "capture", 1.25)
        progress(run_named(name), "", 9.0)
    streams = capsys.readouterr()
    assert streams.out.startswith("1 planned")
    assert streams.err.splitlines() == [
        "[1/2] tiny-paired",
        "[1]    1.2 s  capture",
        "[1]    9.0 s  ended",
        "[2/2] tiny-kernels",
        "[2]    1.2 s  capture",
        "[2]    9.0 s  ended",
    ]


def test_colour_appears_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert any("\x1b[" in line for line in printed(view_of(Status.FAIL)))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any("\x1b[3" in line for line in printed(view_of(Status.FAIL)))


def test_claims_without_an_executable_check_are_counted() -> None:
    assert "2 listed claims have no executable check." in printed(view_of(Status.PASS, contracts=[listing_two()]))
