"""What a page says at its top: what was judged, of which commit, on what; and the course of both arms."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_views as views
from hypothesis import assume, example, given
from hypothesis import strategies as st
from report_page import with_losses
from report_views import drill_view, drilled, full_view, header, ratio_of, small_view, view_of

from harness.contract.load import load_contract
from harness.evidence.arm_records import ArmStart
from harness.judging.verdict import Demanded, Figure, Interval, Status, Verdict
from harness.report.cards import claim_rows
from harness.report.deciding import sure
from harness.report.first_screen import Leading, apart, claimed, course, gate_words, identity, now, subject
from harness.report.html import render
from harness.report.junit import render_junit
from harness.report.markdown import render_markdown
from harness.report.terminal import print_results
from harness.report.view import ReportView
from harness.report.what_now import Step

SYSTEM = "reference_impl.system:QLoRASystem"
CONTRACTS = Path(__file__).parents[3] / "contracts"
COMMIT = "9b1c2d3e4f50" + "0" * 28


def facts(**environment: Any) -> dict[str, str]:
    return dict(identity(small_view(header=header(environment=environment))))


def test_the_first_screen_shows_the_workload_shapes_of_the_executed_units() -> None:
    name = "Model, batch, length"
    assert dict(identity(small_view(header=small_view().header)))[name] == "tiny, 4 × 64 tokens, 100 steps"
    shapes = {"w1": {"model": "tiny", "batch_size": 2, "seq_len": [32, 64, 48], "steps": 1000}}
    view = view_of(Status.PASS, Status.PASS, contracts=[views.contract(workloads=shapes | views.CONTRACT["workloads"])])
    assert dict(identity(view))[name] == "tiny, 2 × 32/64/48 tokens, 1,000 steps (workload w1)"


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


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
@example(0.000759, 3.96)  # regression: the label at the left was cut off
@example(1e-300, -1.23e-200)
@example(-1.23e14, 1.23e14)
def test_no_label_of_the_small_plot_is_cut_off(first: float, second: float) -> None:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    series, same = np.array([first, second]), np.array([second, second])
    assume(np.isfinite(series - same).all())
    found = course(with_losses(ungraphed=series, graphed=same))
    assert found is not None
    for text in re.finditer(r'<text x="(\d+)" y="[\d.]+">([^<]+)<', found.image):
        width = TextPath((0, 0), text[2], size=10, prop=FontProperties(family="DejaVu Sans")).get_extents().width
        assert float(text[1]) >= width, text[0]


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
    assert found.row.claim == leads
    shown = course(view)
    assert (shown.claim if shown else None) == (leads if drawn else None)


def test_the_first_screen_shows_no_plot_when_the_worst_claim_has_none() -> None:
    """On the page of this test, the worst claim ended with an error and has no plot, but other claims have plots."""
    view = full_view()
    found = claimed(view, claim_rows(view))
    assert found is not None
    assert found.row.word == "error"
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
    assert f"<dt>Whose</dt><dd>ada; trainer {SYSTEM}</dd>" in page


@pytest.mark.parametrize(("others", "says"), [(Status.FAIL, False), (Status.NOT_RUN, True)])
def test_a_page_mentions_units_not_run_only_if_there_are_any(others: Status, says: bool) -> None:
    assert ("units that were not run do not count as failures" in render(view_of(Status.PASS, others))) is says


def test_overlapping_axis_labels_are_left_out_except_the_demand() -> None:
    assert apart({1.1: 50.0, 1.09: 54.0, 1.32: 12.0}) == [1.1, 1.32]


def test_a_traced_capture_is_described_as_replayed_by_the_harness() -> None:
    """Page, terminal and summary say this, because a reader took the word `captured` for a CUDA graph."""
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
    assert step.text.startswith(
        "decide F-1, 1 unit: about 30 seeds would probably be enough: change `seeds` of F-1 in "
    )
    assert step.text.endswith(" …")
    assert more == []


CHANGED = f"{COMMIT}+changes"
NAMED = {SYSTEM: {"commit": COMMIT, "name": "QLoRA trainer"}}


def asked(**environment: Any) -> dict[str, str]:
    return dict(subject(small_view(header=header(environment=environment))))


@pytest.mark.parametrize(
    ("ci", "whose"),
    [
        ({}, f"QLoRA trainer ({SYSTEM}); no author was recorded"),
        ({"author": "ada"}, f"ada; QLoRA trainer ({SYSTEM})"),
    ],
)
def test_the_first_screen_names_the_trainer_even_if_no_author_is_recorded(ci: dict[str, str], whose: str) -> None:
    assert asked(ci=ci, trainers=NAMED)["Whose"] == whose


def test_only_the_leading_trainer_of_several_is_named_at_the_top() -> None:
    contracts = [views.contract(), views.contract(id="other-v1", system="other.module:System")]
    whose = dict(subject(replace(small_view(), contracts=contracts)))["Whose"]
    assert whose == f"trainer {SYSTEM} and 1 more; no author was recorded"


@pytest.mark.parametrize(
    ("harness", "trainers", "words"),
    [
        (CHANGED, {SYSTEM: {"commit": CHANGED}}, "9b1c2d3e4f50 with uncommitted changes (trainer and harness)"),
        ("4" * 40, {SYSTEM: {"commit": CHANGED}}, f"9b1c2d3e4f50 with uncommitted changes; harness {'4' * 12}"),
        (CHANGED, {}, "of the trainer not recorded; harness 9b1c2d3e4f50 with uncommitted changes"),
        (COMMIT, {SYSTEM: {"commit": None}}, "of no repository; harness 9b1c2d3e4f50"),
        (None, {}, "of the trainer not recorded; harness not recorded"),
    ],
)
def test_uncommitted_changes_stand_next_to_the_commit(
    harness: str | None, trainers: dict[str, Any], words: str
) -> None:
    assert asked(git={"commit": harness}, trainers=trainers)["Commit"] == words


def test_uncommitted_changes_of_a_compared_commit_are_described_in_the_same_words() -> None:
    candidate = {"commit": COMMIT, "subject": "Faster", "changes": 2}
    commits = {"candidate": candidate, "baseline": {"commit": "a" * 40, "subject": "Old"}}
    found = dict(subject(small_view(header=header(commits=commits))))["Commit"]
    assert found.startswith('candidate 9b1c2d3e4f50 with uncommitted changes in 2 files "Faster"; baseline aaaaaaaa')


def leading(view: ReportView) -> Leading:
    found = claimed(view, claim_rows(view))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("statuses", "why"),
    [
        ([Status.PASS], ""),
        ([Status.PASS] * 3, "shown first of the 3 units that held, because it compares two trainings step by step"),
        ([Status.PASS, Status.FAIL], "shown first as the only one of 2 units that is violated"),
        ([Status.INCONCLUSIVE] * 2 + [Status.PASS], "shown first of the 2 units that are undecided"),
        ([Status.ERROR, Status.PASS], "shown first as the only one of 2 units with an error"),
    ],
)
def test_the_first_screen_says_why_its_first_claim_was_chosen(statuses: list[Status], why: str) -> None:
    assert leading(view_of(*statuses)).why == why


def test_a_claim_with_a_surviving_fault_is_shown_first_and_the_page_says_why() -> None:
    view = replace(views.whole_drill_view(killed=[True, False]), verdicts=[unit("F-GRAPH-BWD-001")] * 2)
    assert leading(view).why == "shown first because a planted fault survived in it"


def test_the_first_claim_names_its_baseline_and_how_the_arms_differ() -> None:
    assert leading(small_view()).compared == (
        "arm graphed (capture step) with the baseline, arm ungraphed (capture none)"
    )
    alone = replace(small_view(), verdicts=[views.verdict("F-GRAPH-BWD-002")])
    assert leading(alone).compared == "arm graphed (capture step) with no other arm"
    commits = {"candidate": {"commit": COMMIT, "subject": "x"}, "baseline": {"commit": "a" * 40, "subject": "y"}}
    both = small_view(header=header(commits=commits))
    assert "arm ungraphed (capture none, commit aaaaaaaaaaaa)" in leading(both).compared


@pytest.mark.parametrize(
    ("file", "claim", "words"),
    [
        ("cuda-graph-backward-v1.yaml", "CGB-INV-002", " with the control, arm synchronizing ("),
        ("traced-step-v1.yaml", "REF-STEP-001", " and the yardstick, arm transformers-float32"),
        ("repeatability-v1.yaml", "FALSIFY-GPUTRAIN-006", "arm plain with no other arm"),
    ],
)
def test_the_first_claim_names_further_arms_by_their_role(file: str, claim: str, words: str) -> None:
    contract = load_contract(CONTRACTS / file).contract
    view = views.view_with(views.verdict(claim, contract=contract.id), contracts=[contract])
    assert words in leading(view).compared


def test_the_first_claim_introduces_its_workload_as_a_model() -> None:
    assert leading(small_view()).workload == "on model tiny, 4 × 64 tokens, 100 steps"


def test_the_workload_says_that_the_weights_are_random_if_the_evidence_records_it() -> None:
    view = small_view()
    for run in view.evidence.values():
        for executions in run.arms.values():
            executions[:] = [replace(one, start=stating(one.start, random_weights=True)) for one in executions]
    expected = "tiny with random weights, 4 × 64 tokens, 100 steps"
    assert leading(view).workload == f"on model {expected}"
    assert dict(identity(view))["Model, batch, length"] == expected


def stating(start: ArmStart, **facts: bool) -> ArmStart:
    return start.model_copy(update={"facts": {**start.facts, **facts}})


def test_the_first_claim_says_whether_a_drill_proved_that_it_can_fail() -> None:
    proven = replace(view_of(Status.PASS), drill=drilled(killed=[True, True]))
    partly = replace(view_of(Status.PASS), drill=drilled(killed=[True, False]))
    assert leading(proven).proven == "Proven: 2 of 2 faults killed (planted on purpose, and noticed)"
    assert leading(partly).proven == "Proven in part: 1 of 2 faults killed (planted on purpose, and noticed)"
    nothing = replace(view_of(Status.PASS), drill=drilled(killed=[False, False]))
    assert leading(nothing).proven.startswith("Not proven: 0 of 2 faults killed")
    assert leading(view_of(Status.PASS)).proven == "Not proven: no fault was planted on purpose"
    assert leading(view_of(Status.FAIL)).proven == "It failed here, and no fault was planted on purpose"
    assert leading(drill_view()).proven == "The fault stale_batch was planted"


MINIMUM, MAXIMUM = "at least 1.1x is required", "at most 0.02 is allowed"


def seeds(low: float, high: float) -> dict[str, Any]:
    interval = Interval(low, high, 0.95, "one-sided bounds", "seeds")
    return views.decided_by(Demanded("worse_by", (low + high) / 2, "at most", 0.02, "loss", interval=interval))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ratio_of(1.5),
            "even allowing for chance it is at least 1.490x (99 % confidence, 8 processes); at least 1.1x is required",
        ),
        (
            ratio_of(1.0),
            "even allowing for chance it is at most 1.020x (99 % confidence, 8 processes); at least 1.1x is required",
        ),
        (
            ratio_of(1.1),
            f"by chance it could be as low as 1.090x (99 % confidence, 8 processes); {MINIMUM}, so it is open",
        ),
        (
            seeds(0.00141, 0.0274),
            f"by chance it could be as high as 0.0274 loss (95 % confidence, 8 seeds); {MAXIMUM}, so it is open",
        ),
        (
            views.decided_by(Demanded("steps_differing", 0, "none", 0, "steps differ", of=100)),
            "counted over 8 processes, 8 seeds; nothing was estimated",
        ),
        ({}, "no figure decided it"),
    ],
)
def test_the_confidence_of_a_verdict_is_stated_without_terms_of_statistics(changes: dict[str, Any], words: str) -> None:
    counted = changes | {"denominators": {"processes": 8, "seeds": 8}}
    found = [sure(views.verdict("F-1", status=each, **counted)) for each in (Status.PASS, Status.INCONCLUSIVE)]
    assert words in found
    assert "open" not in found[0]


def test_the_first_screen_says_if_a_clear_ratio_is_undecided_for_another_reason() -> None:
    ratio = ratio_of(1.5) | {"denominators": {"processes": 8}}
    found = sure(views.verdict("F-GRAPH-BWD-003", status=Status.INCONCLUSIVE, **ratio))
    assert found.endswith("; at least 1.1x is required; something else leaves it open")


@pytest.mark.parametrize(
    ("statuses", "gate", "words"),
    [
        ([Status.PASS], True, "Judged as a gate: open, exit code 0."),
        ([Status.PASS, Status.NOT_RUN], True, "Judged as a gate: closed, exit code 10."),
        ([Status.FAIL], True, "Judged as a gate: closed, exit code 1."),
        ([Status.FAIL], False, "Not judged as a gate (--gate), exit code 1."),
        (
            [Status.PASS, Status.NOT_RUN],
            False,
            "Not judged as a gate (--gate), exit code 0: units that were not run do not count as failures.",
        ),
    ],
)
def test_the_first_screen_shows_gate_and_exit_code(statuses: list[Status], gate: bool, words: str) -> None:
    assert gate_words(view_of(*statuses, gate=gate)) == words
    assert words in render(view_of(*statuses, gate=gate))


def test_a_page_that_is_rendered_later_still_shows_that_the_run_was_a_gate() -> None:
    recorded = header(command=["harness", "verify", "a.yaml", "--gate"])
    assert (
        gate_words(view_of(Status.PASS, Status.NOT_RUN, header=recorded)) == "Judged as a gate: closed, exit code 10."
    )


def test_the_first_screen_explains_the_word_unit_next_to_the_number_of_units() -> None:
    assert "A unit is one claim on one workload (model, batch, length, steps)." in render(small_view())


def test_the_axes_of_the_first_plot_have_titles() -> None:
    series, ratios = course(small_view()), course(replace(full_view(), verdicts=[unit("F-GRAPH-BWD-003")]))
    assert series is not None
    assert ratios is not None
    for title in (">loss<", ">difference<", ">step<"):
        assert title in series.image
    for title in (">times as fast<", ">process<"):
        assert title in ratios.image


def test_the_top_of_the_summary_answers_the_same_questions_as_the_first_screen() -> None:
    environment = {"git": {"commit": CHANGED}, "trainers": NAMED, "gpu": {"name": "NVIDIA H200"}}
    top = render_markdown(small_view(header=header(environment=environment))).replace("\\", "").split("\n| ")[0]
    for words in (
        "exit code 0",
        f"Whose: QLoRA trainer ({SYSTEM}); no author was recorded",
        "Commit: 9b1c2d3e4f50; harness 9b1c2d3e4f50 with uncommitted changes",
        "GPU: NVIDIA H200",
        "arm graphed (capture step) with the baseline, arm ungraphed (capture none)",
        "Not proven: no fault was planted on purpose",
    ):
        assert words in top
