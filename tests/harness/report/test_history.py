from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from report_views import drill_view, full_view, verdict, view_with

from harness.judge.verdict import Figure, Status
from harness.report.history import history, machine, render_history
from harness.report.view import ReportView


def run_of(day: int, ratio: float | None, gpu: str | None = "NVIDIA H200", commit: str | None = "abc") -> ReportView:
    environment: dict[str, Any] = {"gpu": {"name": gpu} if gpu else {}, "versions": {"torch": "2.11"}}
    environment["git"] = {"commit": commit}
    figures = {} if ratio is None else {"mean_ratio": Figure(value=ratio, unit="x"), "note": Figure(value="text")}
    item = verdict("F-GRAPH-BWD-003", figures=figures)
    return view_with(item, started_at=f"2026-11-{day:02}", environment=environment)


def test_a_row_for_each_numeric_figure_in_the_order_of_the_runs() -> None:
    frame = history([run_of(9, 1.3), run_of(2, 1.2)])
    assert frame[["started_at", "figure", "value", "unit"]].to_numpy().tolist() == [
        ["2026-11-02", "mean_ratio", 1.2, "x"],
        ["2026-11-09", "mean_ratio", 1.3, "x"],
    ]


def test_a_run_without_figures_does_not_disappear() -> None:
    (row,) = history([run_of(1, None)]).to_dict("records")
    assert (row["claim"], row["status"], row["figure"]) == ("F-GRAPH-BWD-003", "PASS", "")
    assert math.isnan(row["value"])


def test_what_a_run_does_not_know_is_unknown() -> None:
    (row,) = history([run_of(1, 1.0, gpu=None, commit=None)]).to_dict("records")
    assert (row["commit"], row["machine"]) == ("unknown", "unknown, torch 2.11")


def test_a_machine_is_its_device_driver_and_torch() -> None:
    assert machine(full_view()) == "NVIDIA H200, driver 580.65.06, torch 2.11.0+cu130"


def test_drills_are_left_out_and_counted() -> None:
    assert history([drill_view()]).empty
    assert "1 runs, 1 drills left out" in render_history([run_of(1, 1.0), drill_view()])


def test_no_runs_give_an_empty_table_and_a_page() -> None:
    assert history([]).empty
    assert "0 runs" in render_history([])


def test_a_figure_that_moved_is_drawn_and_one_that_did_not_is_not() -> None:
    assert "<svg" not in render_history([run_of(1, 1.2), run_of(2, 1.2)])
    page = render_history([run_of(1, 1.2), run_of(2, 1.4)])
    assert page.count("<svg") == 1
    assert "mean ratio over 2 runs; the latest: 1.2, 1.4." in page


@pytest.mark.parametrize(("gpus", "lines"), [(("a", "a", "a"), 1), (("a", "b", "a"), 2), ((None, None, None), 0)])
def test_only_like_machines_share_a_line_and_unknown_ones_none(
    gpus: tuple[str | None, ...], lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def watch(axes: Any, *arguments: Any, **style: Any) -> None:
        drawn.append(style["ls"])

    monkeypatch.setattr("matplotlib.axes.Axes.plot", watch)
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda *_, **__: None)
    render_history([run_of(day, 1.0 + day, gpu) for day, gpu in enumerate(gpus, start=1)])
    assert drawn.count("-") == lines


def turned(day: int, status: Status, gpu: str | None = "NVIDIA H200") -> ReportView:
    run = run_of(day, None, gpu)
    return replace(run, verdicts=[run.verdicts[0].model_copy(update={"status": status})])


def test_a_verdict_that_turned_is_told_with_the_run_that_turned_it() -> None:
    page = render_history([turned(1, Status.PASS), turned(2, Status.PASS, "other"), turned(3, Status.FAIL)])
    assert page.count("-&gt;") == 1
    assert "<td>PASS -&gt; FAIL</td><td>NVIDIA H200, torch 2.11</td>" in page


def test_verdicts_of_unlike_or_unknown_machines_are_not_compared() -> None:
    pages = [
        render_history([turned(1, Status.PASS, first), turned(2, Status.FAIL, second)])
        for first, second in (("a", "b"), (None, None))
    ]
    assert all("No unit changed its verdict" in page for page in pages)


def test_each_run_shows_its_counts_the_latest_first() -> None:
    page = render_history([turned(1, Status.PASS), turned(2, Status.ERROR)])
    rows = re.findall(r"<tr><th>(2026-11-0\d)</th>(.*?)</tr>", page)
    counts = [(day, re.findall(r"<td>(\d)</td>", cells)) for day, cells in rows[:2]]
    assert counts == [("2026-11-02", ["1", "0", "0", "0", "0", "1"]), ("2026-11-01", ["1", "1", "0", "0", "0", "0"])]


def test_hostile_names_stay_text() -> None:
    run = run_of(1, 1.0, gpu="<script>$x$\x00</script>", commit="<img src=x>")
    page = render_history([run, run_of(2, 2.0, gpu="<b>")])
    assert page.count("<script") == 1
    assert "<img src=x" not in page
