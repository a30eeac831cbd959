"""Several run directories on one page: what differs is marked, runs stay apart, no claim holds of them together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from report_page import Page, with_losses
from report_views import CONTRACT, header, loss_curve, small_view, view_of

from harness.errors import ExitCode
from harness.evidence.plan_records import Unit
from harness.judging.verdict import Status
from harness.report.headline import headline
from harness.report.html import render
from harness.report.junit import render_junit
from harness.report.markdown import render_markdown
from harness.report.together import JudgedUnit, notes, of_each_part, rows, side_by_side, together
from harness.report.view import ReportView, RunPart


def on(commit: str, gpu: str = "NVIDIA H200", view: ReportView | None = None, **changes: Any) -> ReportView:
    """A run at a commit, on a GPU."""
    seen = view or small_view()
    environment = {"git": {"commit": commit}, "gpu": {"name": gpu, "driver": "580"}, "versions": {"torch": "2.11.0"}}
    described = header(environment=environment, **changes).model_copy(update={"units": seen.header.units})
    return replace(seen, header=described)


def shared(*views: ReportView) -> ReportView:
    """Runs side by side: part-0, part-1, …"""
    return side_by_side([RunPart(f"part-{place}", view) for place, view in enumerate(views)], ["other sources"])


def column(view: ReportView, name: str) -> list[str]:
    names, cells = rows(view)
    return [row[names.index(name)] for row in cells]


def test_a_fact_that_differs_from_most_parts_is_marked() -> None:
    view = shared(on("aaaa"), on("bbbb"), on("aaaa", "NVIDIA L4"))
    assert column(view, "harness commit") == ["aaaa", "≠ bbbb", "aaaa"]
    assert column(view, "GPU") == ["NVIDIA H200", "NVIDIA H200", "≠ NVIDIA L4"]
    assert notes(view)[1:] == ["The parts differ in GPU (2 of them), harness commit (2 of them)."]


def test_when_all_parts_differ_each_part_is_marked() -> None:
    assert column(shared(on("aaaa"), on("bbbb")), "harness commit") == ["≠ aaaa", "≠ bbbb"]


def test_equal_run_parts_get_no_note_about_differences() -> None:
    assert notes(together([RunPart("a", on("aaaa")), RunPart("b", on("aaaa"))], [], [])) == []
    assert notes(on("aaaa")) == []


def test_parts_are_listed_by_their_start() -> None:
    later, earlier = (on("aaaa", started_at=f"2026-11-2{day}T11:00:00+00:00") for day in (2, 1))
    assert column(shared(later, earlier), "part") == ["part-1", "part-0"]
    assert column(shared(later, earlier), "started (UTC)") == ["2026-11-21 11:00", "2026-11-22 11:00"]


def test_a_common_fact_is_listed_once_per_value_up_to_a_limit() -> None:
    view = shared(*(on(commit) for commit in ("aaaa", "bbbb", "aaaa", "cccc", "dddd")))

    def facts(one: ReportView) -> list[tuple[str, str]]:
        return [("commit", one.header.environment.git.commit or "")]

    assert of_each_part(view, facts) == [("commit", "aaaa; bbbb; cccc and 1 more")]
    assert of_each_part(on("aaaa"), facts) == [("commit", "aaaa")]


def test_runs_with_equal_names_in_two_parts_keep_their_own_evidence() -> None:
    first, second = with_losses(plain=loss_curve(20)), with_losses(plain=loss_curve(30))
    view = shared(first, second)
    seen = [view.runs_of(one.contract, one.claim, one.workload) for one in view.verdicts]
    assert [[len(run.arms["plain"][0].series.loss) for run in runs] for runs in seen] == [[20], [30]]
    assert [[run.run_id for run in runs] for runs in seen] == [["part-0/tiny-paired"], ["part-1/tiny-paired"]]
    assert "cuda-graph-backward-v1 (part-1) · tiny" in Page(render(view)).words()


def test_a_contract_of_only_one_part_keeps_its_name() -> None:
    [alone] = shared(small_view()).contracts
    assert alone.id == CONTRACT["id"]


@pytest.mark.parametrize(
    ("statuses", "word", "code"),
    [
        ((Status.PASS,), "HELD SEPARATELY", ExitCode.HELD),
        ((Status.PASS, Status.NOT_RUN), "PARTLY DECIDED", ExitCode.HELD),
        ((Status.PASS, Status.FAIL), "VIOLATED", ExitCode.VIOLATED),
        ((Status.ERROR,), "ERROR", ExitCode.ERROR),
    ],
)
def test_runs_that_are_not_one_gate_never_pass(statuses: tuple[Status, ...], word: str, code: ExitCode) -> None:
    units = [Unit(contract=CONTRACT["id"], claim="F-GRAPH-BWD-001", workload=f"w{at}") for at in range(len(statuses))]
    view = view_of(*statuses)
    view = shared(on("aaaa", view=replace(view, header=view.header.model_copy(update={"units": units}))))
    assert (headline(view).word, headline(view).code) == (word, code)
    assert "HELD</strong>" not in render(view)
    assert "headline" in render_junit(view)


def test_the_headline_of_a_shared_page_names_the_narrowing_of_each_part() -> None:
    narrowed = {"claims": ["F-GRAPH-BWD-001"], "workloads": [], "tags": []}
    view = shared(on("aaaa"), on("aaaa", narrowed=narrowed))
    asked = "Only a part of the claims was asked for: in part-1 claims: F-GRAPH-BWD-001."
    assert f" {asked} Left out: in part-1 6 units: F-GRAPH-BWD-001 (qwen2-1.5b), " in headline(view).sentence


def test_every_part_has_its_command_and_its_machine() -> None:
    view = shared(on("aaaa"), on("bbbb", command=["harness", "verify", "other/"]))
    words = Page(render(view)).words()
    assert "harness verify contracts/ harness verify other/" in words
    assert ("git.commit aaaa" in words, "git.commit bbbb" in words) == (True, True)
    assert "```\nharness verify contracts/\nharness verify other/\n```" in render_markdown(view)


def test_a_unit_that_no_part_planned_has_no_part_label() -> None:
    part = RunPart("a", on("aaaa"))
    [unit] = part.view.header.units
    [verdict] = part.view.verdicts
    missing = verdict.model_copy(update={"workload": "other", "status": Status.NOT_RUN})
    view = together(
        [part],
        [JudgedUnit(unit, verdict, part), JudgedUnit(unit.model_copy(update={"workload": "other"}), missing, None)],
        part.view.contracts,
    )
    assert list(view.origins.values()) == ["a"]
    assert render_junit(view).count("part: a\n") == 1
