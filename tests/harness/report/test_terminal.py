from __future__ import annotations

import io
from typing import Any

import pytest
from report_views import (
    CONTRACT,
    contract,
    drill_view,
    full_view,
    listing_two,
    ratio_of,
    verdict,
    view_of,
    view_with,
    whole_drill_view,
)

from harness.judging.verdict import Figure, Status
from harness.report.terminal import print_results
from harness.report.view import ReportView


def printed(view: ReportView) -> list[str]:
    stream = io.StringIO()
    print_results(view, stream)
    return stream.getvalue().splitlines()


def test_the_terminal_prints_the_line_of_counts_first_and_the_outcome_last() -> None:
    lines = printed(full_view())
    assert lines[0] == "7 units · 3 held · 1 violated · 1 undecided · 1 not run · 1 error"
    assert (
        lines[-1]
        == "ERROR: The harness, a worker, the trainer (system) or the machine broke: no gate may trust this run."
    )


def test_the_terminal_headline_with_open_units_is_partly_decided() -> None:
    assert printed(view_of(Status.PASS, Status.INCONCLUSIVE))[-1] == (
        "PARTLY DECIDED: 1 of 2 planned units held (1 undecided)."
    )


def test_the_terminal_prints_a_failed_unit_like_a_failed_assertion() -> None:
    figures = {"first_differing_step": Figure(value=12), "largest_difference": Figure(value=0.5)}
    item = verdict("F-GRAPH-BWD-001", status=Status.FAIL, message="differs from step 12", figures=figures)
    lines = printed(view_with(item, contracts=full_view().contracts))
    assert lines[1] == " violated  F-GRAPH-BWD-001 on tiny: differs from step 12"
    assert lines[2].startswith("           what usually causes this: A batch that was rebound")
    assert lines[3:5] == ["           first differing step: 12", "           largest difference: 0.5"]


def test_the_terminal_states_what_would_decide_the_undecided_units() -> None:
    assert "To decide 1 unit (needs_cuda): run it on a machine with a CUDA device." in printed(full_view())


@pytest.mark.parametrize(("units", "named"), [(2, "F-1 and F-2"), (91, "F-1, F-2, F-3 and 88 more")])
def test_units_not_run_for_the_same_reason_are_printed_in_one_line(units: int, named: str) -> None:
    why: dict[str, Any] = {"status": Status.NOT_RUN, "reason": "needs_cuda", "message": "needs CUDA: none here"}
    items = [verdict(f"F-{number}", **why) for number in range(1, units + 1)]
    said = printed(view_with(*items, verdict("F-GRAPH-BWD-003", message="fast")))
    listed = named.replace(" and F-2", ", F-2") if units == 2 else named
    assert said[1:3] == [
        f"  not run  {units} units ({listed}): needs CUDA: none here",
        "     held  F-GRAPH-BWD-003 on tiny: fast",
    ]


def test_an_error_that_several_units_share_is_printed_once_with_its_advice() -> None:
    why: dict[str, Any] = {"status": Status.ERROR, "reason": "worker_died", "message": "the step raised ValueError"}
    items = [verdict(f"F-{number}", **why) for number in range(1, 4)]
    lines = printed(view_with(*items, verdict("F-4", **{**why, "message": "out of memory"})))
    shared = [number for number, text in enumerate(lines) if "the step raised ValueError" in text]
    assert [lines[number] for number in shared] == ["    error  F-1 on tiny: the step raised ValueError"]
    assert "           2 units (F-2, F-3): the same error" in lines
    assert "    error  F-4 on tiny: out of memory" in lines


def test_the_terminal_shows_a_passing_unit_in_one_line_with_its_deciding_figure() -> None:
    item = verdict("F-GRAPH-BWD-003", message="a long sentence; and more of it", **ratio_of(1.43))
    assert printed(view_with(item))[1] == "     held  F-GRAPH-BWD-003 on tiny: 1.430x, at least 1.1x trimmed mean ratio"


def test_the_terminal_output_of_a_drill_says_that_the_run_is_a_drill() -> None:
    assert any(told.startswith("FIRE DRILL: The fault stale_batch was planted") for told in printed(drill_view()))


def test_the_terminal_states_the_planted_faults_of_a_drill_and_that_its_units_are_controls() -> None:
    told = printed(whole_drill_view(killed=[True, False]))
    assert (
        "FIRE DRILL: 2 faults planted on purpose, 1 survived; the units are the controls, run without a fault." in told
    )
    assert "VIOLATED: 1 of 2 planted faults survived: those claims prove nothing." in told


def test_the_terminal_states_how_many_faults_of_a_drill_were_not_run() -> None:
    told = printed(whole_drill_view(killed=[True], not_run=1))
    assert "FIRE DRILL: 1 fault planted on purpose, 0 survived, 1 not run; the units are" in " ".join(told)


def test_markup_and_escape_sequences_in_messages_are_printed_as_text() -> None:
    item = verdict("F-GRAPH-BWD-001", message="[red]x[/red] \x1b[31m :smile: a\nb")
    lines = printed(view_with(item))
    assert lines[1] == "     held  F-GRAPH-BWD-001 on tiny: [red]x[/red] \\x1b[31m :smile: a b"


def test_long_messages_are_printed_on_one_line() -> None:
    item = verdict("F-GRAPH-BWD-001", message="word " * 60)
    assert len(printed(view_with(item))) == 3


def test_results_are_printed_only_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    print_results(view_of(Status.PASS))
    streams = capsys.readouterr()
    assert streams.out.startswith("1 unit")
    assert streams.err == ""


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1, "steps", "1 step"),
        (2, "steps", "2 steps"),
        (0, "batches", "0 batches"),
        (1, "batches", "1 batch"),
        (1, "processes", "1 process"),
        (1.0, "loss", "1 loss"),
        (1, "ms", "1 ms"),
    ],
)
def test_a_figure_of_one_is_printed_in_the_singular(value: float, unit: str, shown: str) -> None:
    item = verdict("F-GRAPH-BWD-001", status=Status.FAIL, figures={"seen": Figure(value=value, unit=unit)})
    assert printed(view_with(item))[2] == f"           seen: {shown}"


def test_a_remedy_common_to_several_units_is_printed_once() -> None:
    why: dict[str, Any] = {"status": Status.INCONCLUSIVE, "reason": "limits_exceeded"}
    items = [verdict("F-GRAPH-BWD-001", workload=f"w{n}", message=f"load {n}", **why) for n in (1, 2)]
    said = [text for text in printed(view_with(*items)) if text.startswith("To decide")]
    assert said == [
        "To decide 2 units (limits_exceeded): repeat the timing on an otherwise idle machine whose GPU keeps its clock."
    ]


def test_colour_is_printed_with_force_color_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert any("\x1b[" in line for line in printed(view_of(Status.FAIL)))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any("\x1b[3" in line for line in printed(view_of(Status.FAIL)))


def test_the_terminal_counts_claims_without_an_executable_check() -> None:
    assert "2 listed claims have no executable check." in printed(view_of(Status.PASS, contracts=[listing_two()]))


def test_excuses_for_end_states_are_counted_and_an_unused_one_is_a_warning() -> None:
    claims = [dict(claim) for claim in CONTRACT["claims"]]
    claims[0]["may_end_apart"] = {"optimizer group0.step": "read nowhere", "tensors calls": "read nowhere"}
    figures = {"excused_ends": Figure(value=1, unit="counts"), "idle_excuses": Figure(value="tensors calls")}
    unit = verdict(claims[0]["id"], figures=figures)
    lines = printed(view_with(unit, contracts=[contract(claims=claims)]))
    assert "`may_end_apart` allows different final values of 2 counts; 1 unit needed this." in lines
    idle = "No end state needed `tensors calls` under `may_end_apart` of F-GRAPH-BWD-001 on tiny; remove this entry."
    assert f"WARNING: {idle}" in lines
    assert view_with(unit, contracts=[contract(claims=claims)]).doubts() == []  # the verdicts stand
