"""The rows of a page's claims: what decided each, how sure that is, and how many of its faults were killed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import report_views as views
from report_views import decided_by, drilled, full_view, ratio_of, small_view, verdict, view_of, view_with

from harness.contract.schema import Contract
from harness.judging.verdict import Demanded, Figure, Status
from harness.report.cards import ClaimRow, claim_rows
from harness.report.charts import sparkline

RATIOS = {f"ratio.process_{place}": Figure(value=1.4 + place / 100, unit="x") for place in range(8)}
RATIO = {"mean_ratio": Figure(value=1.43, unit="x"), **RATIOS}


def row(**changes: Any) -> ClaimRow:
    [only] = claim_rows(view_with(verdict("F-GRAPH-BWD-003", **changes), contracts=[views.contract()]))
    return only


def test_claim_rows_list_the_worst_units_first_and_omit_unrun_units() -> None:
    assert [found.word for found in claim_rows(full_view())] == [
        "error",
        "violated",
        "undecided",
        "held",
        "held",
        "held",
    ]


def test_workloads_with_equal_results_share_a_row_with_an_anchor_each() -> None:
    alike: dict[str, Any] = {"denominators": {"processes": 8}, **ratio_of(1.43)}
    units = [verdict("F-GRAPH-BWD-003", workload, **alike) for workload in ("a", "b")]
    other = verdict("F-GRAPH-BWD-003", "c", **alike | ratio_of(2.0))
    rows = claim_rows(view_with(*units, other, contracts=[views.contract()]))
    assert [found.workloads for found in rows] == [(("a", "unit-1"), ("b", "unit-2")), (("c", "unit-3"),)]


def test_a_claim_row_of_an_undecided_unit_states_what_would_decide_it() -> None:
    open_ratio = {"processes_to_decide": Figure(value=24, unit="processes"), **RATIO}
    found = row(
        status=Status.INCONCLUSIVE,
        reason="undecided_ratio",
        message="too close to 1.1 to decide",
        figures=open_ratio,
        **ratio_of(1.43),
    )
    assert found.figure == "1.430x, at least 1.1x"
    told = "Too close to 1.1 to decide. To decide: about 24 processes would probably be enough: change `processes` of "
    assert found.to_decide.startswith(told)


@pytest.mark.parametrize("status", [Status.FAIL, Status.ERROR])
def test_a_claim_row_without_a_deciding_figure_shows_the_message(status: Status) -> None:
    found = row(status=status, reason="differs", message="process 3 differs at step 7")
    assert (found.figure, found.figure_name, found.to_decide) == ("Process 3 differs at step 7", "", "")


def test_a_claim_row_of_a_composite_claim_shows_the_part_that_failed() -> None:
    series: dict[str, Any] = {
        "kind": "trajectory_match",
        "candidate": "graphed",
        "baseline": "ungraphed",
        "equality": "bitwise",
    }
    series |= {"max_abs_difference": 0.1, "guards": {"steps": 100}}
    claim = {
        **{key: value for key, value in views.CONTRACT["claims"][0].items() if key in ("id", "title", "judged_on")},
        "why": "w1",
        "if_fails": "f1",
        "kind": "composite",
        "parts": [{"kind": "capture", "candidate": "graphed"}, series],
    }
    figures = {
        "capture.status": Figure(value="PASS"),
        "trajectory_match.status": Figure(value="FAIL"),
    }
    differing = Demanded("steps_differing", 7, "none", 0, "steps differ", of=100, part="trajectory_match.")
    denominators = {"capture.captures": 1, "trajectory_match.steps": 100}
    broken = verdict(
        "F-GRAPH-BWD-001",
        status=Status.FAIL,
        reason="differs",
        figures=figures,
        denominators=denominators,
        **decided_by(differing),
    )
    composed = Contract.model_validate(views.CONTRACT | {"claims": [claim]})
    [found] = claim_rows(view_with(broken, contracts=[composed]))
    assert (found.figure, found.figure_name) == ("7 of 100 steps differ, none may", "of 2 parts")
    assert found.confidence == "counted over 100 steps"


@pytest.mark.parametrize(
    ("killed", "left", "words"),
    [
        ([True, True], 0, "2 of 2 faults killed"),
        ([True, False], 0, "1 of 2 faults killed"),
        ([True], 3, "1 of 1 fault killed, 3 not run"),
        ([], 0, "no fault planted"),
    ],
)
def test_a_claim_row_states_how_many_of_its_faults_were_killed(killed: list[bool], left: int, words: str) -> None:
    view = replace(view_of(Status.PASS), drill=drilled(killed=killed, not_run=left))
    assert [found.faults for found in claim_rows(view)] == [words]


def test_a_claim_row_does_not_count_faults_of_a_different_claim() -> None:
    view = view_with(verdict("F-GRAPH-BWD-003"), contracts=[views.contract()])
    assert [found.faults for found in claim_rows(replace(view, drill=drilled(killed=[True])))] == ["no fault planted"]


def test_a_claim_row_shows_how_many_faults_the_last_drill_killed() -> None:
    drills = [{"contract": views.CONTRACT["id"], "claim": "F-GRAPH-BWD-003", "recorded_at": "2026-11-20"}]
    counted = [drills[0] | {"killed": 3, "planted": 4, "not_run": 0}]
    units = [verdict("F-GRAPH-BWD-003"), verdict("F-GRAPH-BWD-001")]
    rows = claim_rows(view_with(*units, contracts=[views.contract()], drilled=counted))
    assert [found.faults for found in rows] == ["3 of 4 faults killed", "no fault planted"]


def test_a_ratio_sparkline_has_a_dot_per_process_and_a_series_both_arms() -> None:
    dots = str(row(figures=RATIO).spark)
    assert dots.count("h0") == 8
    assert 'class="limit"' in dots
    [series] = claim_rows(small_view())
    assert [str(series.spark).count(f'class="{role}"') for role in ("baseline", "candidate")] == [1, 1]
    assert row(figures={}).spark is None


def test_a_sparkline_leaves_out_non_finite_values() -> None:
    values = np.array([np.nan, 2.0, np.inf, 1.0])
    drawn = str(sparkline.of_series(None, values))
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert sparkline.of_series(None, np.full(5, np.nan)) is None
    assert sparkline.of_series(np.full(5, np.nan), values) == sparkline.of_series(None, values)


def test_a_claim_row_of_a_composite_claim_plots_the_ratios_of_one_part() -> None:
    timing = {"kind": "throughput_ratio", "candidate": "graphed", "baseline": "ungraphed"}
    timing |= {"trajectory": "F-GRAPH-BWD-001"}
    parts = [{**timing, "at_least": 1.1, "measure": "step"}, {**timing, "at_least": 1.2, "measure": "enqueue"}]
    claim = {**views.CONTRACT["claims"][3], "kind": "composite", "parts": parts}
    plain = {key: value for key, value in claim.items() if key not in {*timing, "at_least"} or key == "kind"}
    composed = Contract.model_validate(views.CONTRACT | {"claims": [views.CONTRACT["claims"][0], plain]})
    names = ["throughput_ratio.1", "throughput_ratio.2"]
    figures = {f"{name}.status": Figure(value="PASS") for name in names}
    figures |= {f"{name}.{key}": each for name in names for key, each in RATIO.items()}
    unit = verdict("F-GRAPH-BWD-003", figures=figures)
    [found] = claim_rows(view_with(unit, contracts=[composed]))
    assert str(found.spark).count("h0") == len(RATIOS)


def test_a_claim_row_of_a_composite_shows_no_figure_of_a_passed_part() -> None:
    """If no figure explains why a part is violated, the row shows the message instead."""
    series = {key: views.CONTRACT["claims"][0][key] for key in ("candidate", "baseline", "max_abs_difference")}
    parts: list[dict[str, Any]] = [{"kind": "capture", "candidate": "graphed"}]
    parts.append({"kind": "trajectory_match", **series, "equality": "bitwise", "guards": {"steps": 100}})
    texts = {"id": "F-GRAPH-BWD-001", "title": "t", "judged_on": ["tiny"], "why": "w1", "if_fails": "f1"}
    composed = Contract.model_validate(views.CONTRACT | {"claims": [{**texts, "kind": "composite", "parts": parts}]})
    figures = {
        "capture.status": Figure(value="FAIL"),
        "trajectory_match.status": Figure(value="PASS"),
        "trajectory_match.steps_differing": Figure(value=0, unit="steps"),
    }
    broken = verdict(
        "F-GRAPH-BWD-001",
        status=Status.FAIL,
        reason="not_captured",
        message="graphed was never captured",
        figures=figures,
        denominators={"trajectory_match.steps": 100},
    )
    [found] = claim_rows(view_with(broken, contracts=[composed]))
    assert (found.figure, found.confidence) == ("Graphed was never captured", "")


def test_a_process_that_does_not_count_leaves_a_gap_in_the_sparkline() -> None:
    drawn = sparkline.dots({0: 1.2, 1: 1.3, 4: 1.4}, 1.1, sparkline.Box(0, 0, 100, 10, 1.0, 2.0))
    assert drawn is not None
    assert re.findall(r"M(\S+) \S+h0", drawn) == ["0", "25", "100"]
