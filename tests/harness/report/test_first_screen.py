"""What a page says at its top: what was judged, of which commit, on what; and the course of both arms."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import report_views as views
from report_page import with_losses
from report_views import drilled, full_view, header, small_view, view_of

from harness.judging.verdict import Figure, Status, Verdict
from harness.report.cards import claim_rows
from harness.report.first_screen import apart, claimed, course, identity, now
from harness.report.html import render
from harness.report.junit import render_junit
from harness.report.markdown import render_markdown
from harness.report.terminal import print_results
from harness.report.view import ReportView
from harness.report.what_now import Step

SYSTEM = "reference_impl.system:QLoRASystem"
COMMIT = "9b1c2d3e4f50" + "0" * 28


def facts(**environment: Any) -> dict[str, str]:
    return dict(identity(small_view(header=header(environment=environment))))


@pytest.mark.parametrize(
    ("trainers", "words"),
    [
        ({}, f"{SYSTEM}, commit not recorded"),
        ({SYSTEM: {"commit": COMMIT}}, f"{SYSTEM}, commit 9b1c2d3e4f50"),
        ({SYSTEM: {"commit": f"{COMMIT}+changes"}}, f"{SYSTEM}, commit 9b1c2d3e4f50 with uncommitted changes"),
        ({SYSTEM: {"commit": None}}, f"{SYSTEM}, of no repository"),
    ],
)
def test_the_first_screen_shows_the_trainer_with_its_commit(trainers: dict[str, Any], words: str) -> None:
    found = facts(git={"commit": "4afac30f0e0c" + "0" * 28}, trainers=trainers)
    assert found["Trainer"] == words
    assert found["Harness"] == "commit 4afac30f0e0c"


def test_trainers_beyond_the_third_are_counted() -> None:
    arms = {f"arm{place}": {"capture": "none", "system": f"other.module{place}:System"} for place in range(4)}
    contract = views.contract(arms={**views.CONTRACT["arms"], **arms})
    words = dict(identity(replace(small_view(), contracts=[contract])))["Trainer"]
    assert words == f"{SYSTEM}, other.module0:System, other.module1:System and 2 more, each commit not recorded"


def test_the_first_screen_of_a_commit_comparison_shows_both_commits() -> None:
    commits = {"candidate": {"commit": COMMIT, "subject": "Faster"}, "baseline": {"commit": "a" * 40, "subject": "Old"}}
    found = dict(identity(small_view(header=header(commits=commits))))
    assert (found["Trainer"], found["Candidate"]) == (SYSTEM, '9b1c2d3e4f50 "Faster"')
    assert found["Baseline"] == 'aaaaaaaaaaaa "Old"'


def test_the_first_screen_shows_the_workload_shapes_of_the_executed_units() -> None:
    name = "Model, batch, length"
    assert dict(identity(small_view(header=small_view().header)))[name] == "tiny, 4 × 64 tokens, 100 steps"
    shapes = {"w1": {"model": "tiny", "batch_size": 2, "seq_len": [32, 64, 48], "steps": 1000}}
    view = view_of(Status.PASS, Status.PASS, contracts=[views.contract(workloads=shapes | views.CONTRACT["workloads"])])
    assert dict(identity(view))[name] == "tiny, 2 × 32/64/48 tokens, 1,000 steps (w1)"


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"name": "NVIDIA H200"}, "NVIDIA H200"),
        ({"problem": "no NVIDIA driver"}, "none: no NVIDIA driver"),
        ({}, "not recorded"),
    ],
)
def test_the_first_screen_shows_the_gpu_or_why_there_is_none(gpu: dict[str, str], words: str) -> None:
    assert facts(gpu=gpu)["GPU"] == words


def outcome(**losses: Any) -> str:
    found = course(with_losses(**losses))
    assert found is not None
    return found.outcome


def test_the_caption_of_the_loss_curves_states_the_distance_of_the_arms() -> None:
    loss = np.linspace(3.0, 2.0, 50)
    late = loss.copy()
    late[40] += 0.25
    late[41] += 0.125
    gone = loss.copy()
    gone[45:] = np.nan
    assert outcome(ungraphed=loss, graphed=loss) == "equal in every bit at all 50 steps"
    assert outcome(ungraphed=loss, graphed=late) == "largest 0.25, at step 40; first differing step 40"
    assert outcome(ungraphed=loss, graphed=gone) == "not finite at 5 of 50 steps"


def unit(claim: str, status: Status = Status.PASS) -> Verdict:
    return views.verdict(claim, "tiny", status, **(RATIOS if claim == "F-GRAPH-BWD-003" else {}))


RATIOS = {"figures": {f"ratio.process_{number}": Figure(value=1.2 + number / 10) for number in range(3)}}


@pytest.mark.parametrize(
    ("speed", "trained", "leads", "drawn"),
    [
        (Status.PASS, Status.PASS, "F-GRAPH-BWD-001", True),  # of what held, a trajectory says most
        (Status.FAIL, Status.PASS, "F-GRAPH-BWD-003", True),
        (Status.PASS, Status.FAIL, "F-GRAPH-BWD-001", True),
        (Status.FAIL, Status.ERROR, "F-GRAPH-BWD-001", True),
        (Status.NOT_RUN, Status.PASS, "F-GRAPH-BWD-001", True),
    ],
)
def test_the_first_screen_begins_with_the_failed_claim_and_its_course(
    speed: Status, trained: Status, leads: str, drawn: bool
) -> None:
    view = replace(full_view(), verdicts=[unit("F-GRAPH-BWD-003", speed), unit("F-GRAPH-BWD-001", trained)])
    found = claimed(view, claim_rows(view))
    assert found is not None
    assert found[0].claim == leads
    shown = course(view)
    assert (shown.claim if shown else None) == (leads if drawn else None)


def test_the_first_screen_shows_no_plot_when_the_worst_claim_has_none() -> None:
    """The page of this view has an error in a claim of which nothing is drawn, and curves of others."""
    view = full_view()
    found = claimed(view, claim_rows(view))
    assert found is not None
    assert found[0].word == "error"
    assert course(view) is None


@pytest.mark.parametrize(
    "view",
    [
        view_of(Status.PASS),
        with_losses(ungraphed=np.linspace(3, 2, 50), graphed=np.linspace(3, 2, 25)),
        with_losses(ungraphed=np.full(9, np.nan), graphed=np.linspace(3, 2, 9)),
    ],
    ids=["no evidence", "unequal lengths", "nothing finite"],
)
def test_two_loss_curves_that_cannot_be_overlaid_are_not_plotted(view: ReportView) -> None:
    assert course(view) is None


@pytest.mark.parametrize(
    ("gpu", "ranks", "words"),
    [
        ({"name": "NVIDIA H200", "count": 8, "names": ["NVIDIA H200"] * 8}, 0, "NVIDIA H200"),
        ({"name": "NVIDIA H200", "count": 8, "names": ["NVIDIA H200"] * 8}, 1, "2 × NVIDIA H200"),
        ({"name": "A", "count": 2, "names": ["A", "B"]}, 1, "A and B"),
        ({"name": "NVIDIA H200", "count": 2}, 1, "2 × NVIDIA H200"),  # evidence from before all were named
        ({"name": None, "problem": "no driver"}, 1, "none: no driver"),
    ],
)
def test_the_first_screen_names_all_gpus_of_a_run(gpu: dict[str, Any], ranks: int, words: str) -> None:
    view = small_view(header=header(environment={"gpu": gpu}))
    [run] = view.evidence.values()
    of_ranks = replace(run, ranks=(replace(run, run_id="other"),) * ranks)
    assert dict(identity(replace(view, evidence={run.run_id: of_ranks})))["GPU"] == words


def test_no_page_shows_the_internal_mark_of_uncommitted_changes() -> None:
    commit = f"{COMMIT}+changes"
    environment = {"git": {"commit": commit}, "trainers": {SYSTEM: {"commit": commit}}}
    view = small_view(header=header(environment=environment))
    for shown in (render(view), render_markdown(view), render_junit(view)):
        assert "+changes" not in shown
        assert "with uncommitted changes" in shown


def test_the_first_screen_links_to_the_ci_job() -> None:
    ci = {"service": "Jenkins", "link": "https://ci.example/job/7?a&b", "author": "ada"}
    page = render(small_view(header=header(environment={"ci": ci})))
    assert '<dt>CI job</dt><dd><a href="https://ci.example/job/7?a&amp;b">Jenkins</a></dd>' in page
    assert "<dt>Author</dt><dd>ada</dd>" in page


@pytest.mark.parametrize(("others", "says"), [(Status.FAIL, False), (Status.NOT_RUN, True)])
def test_a_page_mentions_units_not_run_only_if_there_are_any(others: Status, says: bool) -> None:
    assert ("units that were not run do not fail it" in render(view_of(Status.PASS, others))) is says


def test_overlapping_axis_labels_are_left_out_except_the_demand() -> None:
    assert apart({1.1: 50.0, 1.09: 54.0, 1.32: 12.0}) == [1.1, 1.32]


def test_a_traced_capture_is_described_as_replayed_by_the_harness() -> None:
    """Page, terminal and summary say so; a reader took `captured` for a CUDA graph."""
    view = full_view()
    assert dict(identity(view))["Captured"] == "CUDA graph"
    for run in view.evidence.values():
        for one in (each for executions in run.arms.values() for each in executions):
            if one.capture is not None:
                object.__setattr__(one, "capture", one.capture.model_copy(update={"mechanism": "traced"}))
    words = "recorded operators, which the harness replayed itself (no CUDA graph)"
    assert dict(identity(view))["Captured"] == words
    printed = io.StringIO()
    print_results(view, printed)
    assert f"Captured: {words}." in printed.getvalue()
    assert words in render(view)
    assert words in render_markdown(view).replace("\\", "")


def test_the_first_screen_states_the_next_steps_with_their_commands() -> None:
    proven = replace(view_of(Status.PASS), drill=drilled(killed=[True]))
    assert now(proven) == [Step("nothing")]
    [unproven] = now(view_of(Status.PASS))
    why = "no fault was planted, so nothing shows that a wrong step is noticed"
    assert unproven.text == f"prove that F-GRAPH-BWD-001 can fail: {why}"
    assert unproven.command == "harness drill contracts/"
    failed = now(view_of(Status.FAIL, Status.FAIL, Status.FAIL))
    assert failed[0].text.startswith("fix F-GRAPH-BWD-001 on w0: ")
    assert failed[0].command == "harness verify contracts/ --claim F-GRAPH-BWD-001 --workload w0"
    assert [step.text.partition(":")[0] for step in failed[1:]] == [f"fix F-GRAPH-BWD-001 on w{n}" for n in (1, 2)]


def test_a_long_message_is_shortened_before_the_remedy_on_the_first_screen() -> None:
    seen = "over 8 seeds the loss of fp8_plain lies 0.0144 above that of bfloat16, and this sentence goes on " * 3
    estimate = {"seeds_to_decide": Figure(value=30, unit="seeds")}
    unit = views.verdict("F-1", "tiny", Status.INCONCLUSIVE, message=seen, figures=estimate, denominators={"seeds": 8})
    step, *more = now(views.view_with(unit))
    assert step.text.startswith("decide F-1, 1 unit: about 30 seeds would probably be enough (over 8 seeds the loss")
    assert step.text.endswith(" …")
    assert more == []
