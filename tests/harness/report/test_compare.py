from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from report_views import drill_view, full_view, verdict, view_with, waiver, whole_drill_view

from harness.judging.verdict import Figure, Status
from harness.report.compare import compare, figure_changes
from harness.report.view import ReportView


def measured(figures: dict[str, Any], **header_changes: Any) -> ReportView:
    item = verdict("F-GRAPH-BWD-003", figures={name: Figure(value=value) for name, value in figures.items()})
    return view_with(item, **header_changes)


def digests(evidence: str) -> dict[str, Any]:
    return {"contracts": {"c": "1"}, "source": "s", "evidence": {"a": evidence}}


def test_comparing_a_run_with_itself_reports_no_change() -> None:
    lines = compare(full_view(), full_view())
    assert [lines[place : place + 2] for place in (3, 6, 9)] == [
        ["Environment", "  the same"],
        ["Verdicts", "  the same"],
        ["Figures", "  the same"],
    ]


def test_a_comparison_of_runs_lists_environment_changes_before_verdicts() -> None:
    before = measured({}, environment={"versions": {"torch": "2.11"}}, digests=digests("1"))
    after = measured({}, environment={"versions": {"torch": "2.13", "cuda": "13.0"}}, digests=digests("2"))
    text = "\n".join(compare(before, after))
    assert "  versions.torch: 2.11 -> 2.13\n  versions.cuda: unknown -> 13.0\n\nVerdicts" in text
    assert "evidence" not in text


def test_a_changed_verdict_and_a_new_unit_are_listed_by_a_comparison() -> None:
    old = view_with(verdict("A"))
    new = view_with(verdict("A", status=Status.FAIL, reason="differs"), verdict("B"))
    text = "\n".join(compare(old, new))
    assert "  A on tiny: PASS held -> FAIL differs\n  B on tiny: not planned -> PASS held" in text


@pytest.mark.parametrize(
    ("before", "after", "beyond"),
    [
        ((1.30, 1.25, 1.35), (1.38, 1.34, 1.42), False),  # the intervals overlap
        ((1.30, 1.28, 1.32), (1.38, 1.36, 1.40), True),
        ((1.38, 1.36, 1.40), (1.30, 1.28, 1.32), True),
    ],
)
def test_comparing_runs_reports_a_ratio_as_changed_only_if_the_intervals_do_not_overlap(
    before: Any, after: Any, beyond: bool
) -> None:
    names = ("mean_ratio", "lower_bound", "upper_bound")
    first, second = (measured(dict(zip(names, values, strict=True))) for values in (before, after))
    (change,) = figure_changes(first, second)
    assert (change.name, change.beyond_noise) == ("mean_ratio", beyond)


@pytest.mark.parametrize(("floor", "beyond"), [(0.001, True), (0.5, False)])
def test_comparing_runs_reports_a_difference_as_changed_only_beyond_the_noise_floor(floor: float, beyond: bool) -> None:
    before = measured({"max_abs_difference": 0.01, "noise_floor": 0.0})
    after = measured({"max_abs_difference": 0.02, "noise_floor": floor})
    (change,) = figure_changes(before, after)
    assert change.beyond_noise is beyond


def test_in_a_comparison_a_changed_count_exceeds_noise_and_a_figure_of_unknown_noise_is_marked() -> None:
    changes = figure_changes(measured({"nodes": 10, "growth": 0.1}), measured({"nodes": 11, "growth": 0.2}))
    assert {change.name: change.beyond_noise for change in changes} == {"nodes": True, "growth": None}


def test_figures_of_composite_parts_are_compared_by_their_own_bounds() -> None:
    first = measured({"a.mean_ratio": 1.0, "a.lower_bound": 0.9, "a.upper_bound": 1.1, "b.lower_bound": 5.0})
    second = measured({"a.mean_ratio": 2.0, "a.lower_bound": 1.9, "a.upper_bound": 2.1, "b.lower_bound": 6.0})
    (change,) = figure_changes(first, second)
    assert (change.name, change.beyond_noise) == ("a.mean_ratio", True)


def test_comparing_with_an_altered_run_prints_a_warning() -> None:
    lines = compare(view_with(), replace(view_with(), altered=("a: changed",)))
    assert any(line.startswith("WARNING, after: Altered: 1 file differs") for line in lines)


def test_comparing_runs_reports_that_one_run_is_a_drill() -> None:
    told = "FIRE DRILL, after: The fault stale_batch was planted in this run on purpose"
    assert any(each.startswith(told) for each in compare(full_view(), drill_view()))


# --- what must not pass for the same ---------------------------------------------------------------------------------


def text_of(before: ReportView, after: ReportView) -> str:
    return "\n".join(compare(before, after))


@pytest.mark.parametrize(
    "figures",
    [
        {"max_abs_difference": math.nan, "noise_floor": 0.5},
        {"max_abs_difference": math.inf, "noise_floor": math.inf},
    ],
)
def test_a_figure_that_became_non_numeric_is_a_change_beyond_noise(figures: dict[str, Any]) -> None:
    before = measured({"max_abs_difference": 0.01, "noise_floor": 0.5})
    (change,) = figure_changes(before, measured(figures))
    assert change.beyond_noise is True
    assert not list(figure_changes(measured(figures), measured(dict(figures))))


def test_a_ratio_that_became_nan_is_a_change_beyond_noise() -> None:
    names = ("mean_ratio", "lower_bound", "upper_bound")
    before, after = (measured(dict.fromkeys(names, value)) for value in (1.3, math.nan))
    (change,) = figure_changes(before, after)
    assert change.beyond_noise is True


def test_a_comparison_of_drills_names_a_newly_surviving_fault() -> None:
    before, after = (whole_drill_view(killed=killed) for killed in ([True, True], [True, False]))
    assert "\nFaults\n  F-GRAPH-BWD-001 on tiny, fault1: killed -> SURVIVED\n" in text_of(before, after)
    assert "\nFaults\n  the same\n" in text_of(before, before)
    assert "Faults" not in text_of(full_view(), full_view())


def test_a_fault_that_was_not_run_is_not_compared_as_killed() -> None:
    before, after = whole_drill_view(killed=[True]), whole_drill_view(killed=[], not_run=1)
    told = text_of(before, after)
    assert "  F-GRAPH-BWD-001 on tiny, fault0: killed -> not planned\n" in told
    assert "  F-GRAPH-BWD-001, left0: not planned -> not run needs_cuda\n" in told


def test_a_violation_that_was_waived_later_is_listed_as_changed() -> None:
    violated = verdict("F-GRAPH-BWD-001", "tiny", Status.FAIL, reason="differs")
    told = text_of(view_with(violated), view_with(violated, waivers=[waiver("tiny")]))
    assert "  F-GRAPH-BWD-001 on tiny: FAIL differs -> FAIL differs, waived\n" in told


def test_compared_commits_and_narrowing_are_listed_as_environment() -> None:
    facts = {"candidate": {"commit": "a" * 40, "subject": "now"}, "baseline": {"commit": "b" * 40, "subject": "then"}}
    other = {**facts, "baseline": {"commit": "c" * 40, "subject": "then"}}
    assert f"  baseline.commit: {'b' * 40} -> {'c' * 40}\n" in text_of(
        view_with(commits=facts), view_with(commits=other)
    )
    assert "  claims: unknown -> A\n" in text_of(view_with(), view_with(narrowed={"claims": ["A"]}))


def test_long_lists_that_differ_only_at_the_end_are_listed_as_changed() -> None:
    before, after = (view_with(narrowed={"claims": [f"C-{at}" for at in range(n)]}) for n in (30, 31))
    told = text_of(before, after).partition("Environment\n")[2].partition("\n\n")[0]
    assert told.startswith("  claims: ")


def test_compared_units_of_two_contracts_are_labelled_with_their_contract() -> None:
    def of(status: Status) -> ReportView:
        both = [verdict("A"), verdict("A", status=status, reason="r").model_copy(update={"contract": "other"})]
        return view_with(*both)

    assert "  A on tiny (other): PASS r -> FAIL r\n" in text_of(of(Status.PASS), of(Status.FAIL))
