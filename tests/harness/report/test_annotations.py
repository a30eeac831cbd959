from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
from report_views import CONTRACT, header, planted, verdict, view_of, view_with, waiver, whole_drill_view

from harness.evidence.run_evidence import Death, RunEvidence
from harness.judging.verdict import Status
from harness.report.github_actions import github_annotations
from harness.report.headline import headline
from harness.report.view import ReportView
from harness.system.users_code import message_of


def test_errors_and_violations_are_annotated_the_worst_first() -> None:
    assert github_annotations(view_of(Status.PASS, Status.FAIL, Status.NOT_RUN, Status.ERROR)) == [
        "::error title=F-GRAPH-BWD-001 on w3%3A error::message 3",
        "::error title=F-GRAPH-BWD-001 on w1%3A violated::message 1",
    ]


def test_a_gate_closed_by_open_units_is_an_error_and_the_units_are_warnings() -> None:
    lines = github_annotations(view_of(Status.INCONCLUSIVE, Status.NOT_RUN, gate=True))
    assert lines == [
        "::error title=NOT DECIDED::Nothing at all was decided.",
        "::warning title=F-GRAPH-BWD-001 on w0%3A undecided::message 0",
        "::warning title=F-GRAPH-BWD-001 on w1%3A not run::message 1",
    ]


def test_an_annotation_has_the_file_and_line_of_its_claim() -> None:
    view = view_of(Status.FAIL)
    [unit] = view.verdicts
    (line,) = github_annotations(replace(view, places={(unit.contract, unit.claim): ("a,b/c.yaml", 12)}))
    assert line == "::error file=a%2Cb/c.yaml,line=12,title=F-GRAPH-BWD-001 on w0%3A violated::message 0"


def test_at_most_ten_annotations_are_printed_and_the_last_counts_the_omitted_units() -> None:
    assert len(github_annotations(view_of(*[Status.FAIL] * 10))) == 10
    lines = github_annotations(view_of(*[Status.FAIL] * 25))
    assert len(lines) == 10
    assert lines[-1] == "::error title=More units::the report has 16 more units"


def test_a_waived_violation_is_a_warning() -> None:
    (line,) = github_annotations(view_of(Status.FAIL, Status.PASS, header=header(waivers=[waiver("w0")])))
    assert line == "::warning title=F-GRAPH-BWD-001 on w0%3A waived::message 0"


@pytest.mark.parametrize(
    ("view", "line"),
    [
        (
            view_of(Status.PASS, Status.NOT_RUN),
            "::warning title=PARTLY DECIDED::1 of 2 planned units held (1 not run).",
        ),
        (
            view_of(Status.PASS, altered=("a.csv: changed",)),
            "::error title=ERROR::Evidence differs from the digests recorded with it, so nothing here is proven.",
        ),
        (
            whole_drill_view(killed=[True, False]),
            "::error title=VIOLATED::1 of 2 planted faults survived: those claims prove nothing.",
        ),
        (view_of(Status.NOT_RUN), "::error title=NOT DECIDED::Nothing at all was decided."),
    ],
    ids=["partly", "altered", "survivor", "nothing"],
)
def test_the_headline_is_annotated_if_no_unit_has_the_same_status(view: ReportView, line: str) -> None:
    assert github_annotations(view) == [line]


def test_a_passing_unit_is_not_annotated() -> None:
    assert github_annotations(view_of(Status.PASS)) == []


def test_at_most_ten_annotations_are_written_including_the_headline() -> None:
    lines = github_annotations(view_of(*[Status.FAIL] * 25, altered=("a.csv: changed",)))
    assert (len(lines), lines[0][:19]) == (10, "::error title=ERROR")
    assert lines[-1] == "::error title=More units::the report has 17 more units"


def test_text_in_an_annotation_cannot_start_a_command_or_end_a_property() -> None:
    item = verdict("a,b::c", "w\n::error::x", Status.FAIL, message="100%\r\n::set-output name=x::y")
    (line,) = github_annotations(view_with(item))
    assert line == "::error title=a%2Cb%3A%3Ac on w %3A%3Aerror%3A%3Ax%3A violated::100%25 ::set-output name=x::y"


def test_annotations_list_failing_units_before_waived_units() -> None:
    signed = header(waivers=[waiver(f"w{place}") for place in range(12)])
    lines = github_annotations(view_of(*[Status.FAIL] * 12, Status.INCONCLUSIVE, gate=True, header=signed))
    assert lines[:2] == [
        "::error title=NOT DECIDED::Nothing but waived claims was decided.",
        "::warning title=F-GRAPH-BWD-001 on w12%3A undecided::message 12",
    ]
    assert (len(lines), lines[2][:9]) == (10, "::warning")


@pytest.mark.parametrize("statuses", [*combinations_with_replacement(Status, 2)])
@pytest.mark.parametrize("gate", [False, True])
def test_an_error_is_annotated_exactly_if_the_exit_code_is_not_0(statuses: tuple[Status, ...], gate: bool) -> None:
    view = view_of(*statuses, gate=gate)
    annotated = [each for each in github_annotations(view) if each.startswith("::error ")]
    assert bool(annotated) == bool(headline(view).code)


def broken_step() -> None:
    raise RuntimeError("no memory")


def test_units_broken_by_one_exception_share_an_annotation_at_the_line_that_raised_it() -> None:
    with pytest.raises(RuntimeError) as raised:
        broken_step()
    detail = message_of(raised.value)
    names = {"a": detail, "b": detail, "c": "KeyError: 0"}
    runs = {
        name: RunEvidence(name, "paired", {}, death=Death(cause="exception", detail=text, phase="step", stack=""))
        for name, text in names.items()
    }
    units = [{"contract": CONTRACT["id"], "claim": "C", "workload": name, "runs": [name]} for name in names]
    broken = [verdict("C", name, Status.ERROR, message=f"it died: {text}") for name, text in names.items()]
    view = replace(view_with(*broken, units=units), evidence=runs)
    file, line = detail.split()[0].split(":")
    assert github_annotations(view) == [
        f"::error file={file},line={line},title=2 units%3A error::{detail}; breaks C on a, C on b",
        "::error title=C on c%3A error::it died: KeyError: 0",
    ]


@pytest.mark.parametrize(
    ("view", "first"),
    [
        (
            view_of(Status.ERROR, altered=("a.csv: changed",)),
            "::error title=ERROR::Evidence differs from the digests recorded with it, so nothing here is proven.",
        ),
        (
            whole_drill_view(Status.FAIL, killed=[True, False]),
            (
                "::error title=VIOLATED::1 of 1 control did not hold (F-GRAPH-BWD-001): the faults of those claims "
                "prove nothing. 1 of 2 planted faults survived: those claims prove nothing."
            ),
        ),
    ],
    ids=["altered", "survivor"],
)
def test_a_headline_is_annotated_even_when_a_unit_has_the_same_status(view: ReportView, first: str) -> None:
    lines = github_annotations(view)
    assert (lines[0], len(lines)) == (first, 2)


def test_an_annotation_of_a_faulted_unit_names_the_planted_fault() -> None:
    (line,) = github_annotations(planted(view_of(Status.FAIL)))
    assert line == "::error title=FIRE DRILL%2C stale_batch planted%3A F-GRAPH-BWD-001 on w0%3A violated::message 0"
