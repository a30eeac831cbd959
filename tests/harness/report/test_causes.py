"""Advice by reason code: each code has its own, and a claim's text stands only where it speaks of what was seen."""

from __future__ import annotations

import html
import io
import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main
from evidence_builders import LOSSES, TRAJECTORY, arm, contract_of, cuda_graph, graphed, paired, twice, untrained
from judge_cases_between_steps import RESUME
from pydantic import ValidationError
from report_views import CONTRACT, contract, header, verdict, view_with
from report_views import view_of as view_of_units

from harness.cli.application import application
from harness.contract.strict_yaml import read
from harness.evidence.arm_records import HostNumber
from harness.evidence.run_evidence import ArmEvidence, Death, RunEvidence
from harness.judging.reasons import REASONS
from harness.judging.registry import judge_unit
from harness.judging.verdict import Figure, Status, Verdict
from harness.report import wording
from harness.report.advice import (
    FLAGS,
    Advice,
    advice,
    advice_of,
    command_for,
    command_to_plant,
    own_line,
    repeats_units,
    telling_figures,
)
from harness.report.headline import remedy_of
from harness.report.html import render
from harness.report.junit import render_junit
from harness.report.markdown import render_markdown
from harness.report.terminal import print_results
from harness.report.view import ReportView
from harness.report.wording import TEXTS, reason_text

CAUSES = {code: text for code in REASONS if (text := reason_text(code)).cause is not None}
TOLD = (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE)
NEED_A_CAUSE = sorted(code for code, reason in REASONS.items() if reason.status in TOLD)
IF_FAILS = "A batch that was rebound instead of copied, or a learning rate frozen in the graph."
ASKED = ("harness", "verify", "contracts/", "--gate")


def of_code(code: str, **changes: Any) -> Verdict:
    return verdict("F-GRAPH-BWD-001", status=REASONS[code].status, reason=code, message="seen", **changes)


def view_of(item: Verdict, **changes: Any) -> ReportView:
    return view_with(item, **{"contracts": [contract()], **changes})


def advice_on(view: ReportView) -> list[Advice]:
    return advice(view, view.verdicts[0])


def labelled(found: list[Advice], label: str) -> list[str]:
    return [each.text for each in found if each.label == label]


def test_exactly_the_reason_codes_that_need_a_cause_have_a_cause() -> None:
    assert sorted(CAUSES) == NEED_A_CAUSE


def test_a_next_step_that_needs_kept_evidence_says_how_try_keeps_it() -> None:
    for code, text in wording.reasons().items():
        if text.remedy and re.search("What broke|the report|kept with", text.remedy):
            assert "`--reports`" in text.remedy, code


@pytest.mark.parametrize("field", ["cause", "remedy"])
def test_each_reason_code_has_its_own_advice(field: str) -> None:
    texts = sorted(getattr(each, field) for each in CAUSES.values())
    assert [one for one, other in itertools.pairwise(texts) if one == other] == []


@pytest.mark.parametrize("code", NEED_A_CAUSE)
def test_a_cause_is_sentences_and_has_a_next_step(code: str) -> None:
    known = CAUSES[code]
    assert known.cause is not None
    assert known.cause[0].isupper()
    assert known.remedy is not None


def test_reason_codes_of_guards_and_broken_runs_do_not_count_as_failed_comparisons() -> None:
    own = {code for code, known in CAUSES.items() if known.own}
    assert {code for code in own if REASONS[code].status is not Status.FAIL or code.startswith("vacuous_")} == set()


@pytest.mark.parametrize("code", NEED_A_CAUSE)
def test_causes_stated_by_the_contract_are_shown_only_for_the_claims_own_comparison(code: str) -> None:
    found = advice_on(view_of(of_code(code)))
    assert labelled(found, "what usually causes this") == [CAUSES[code].cause]
    assert (IF_FAILS in [each.text for each in found]) is CAUSES[code].own


@pytest.mark.parametrize(
    ("said", "cause", "remedy"),
    [
        ("RuntimeError: AdamW but param_groups' capturable is False", "its step count on the host", "capturable=True"),
        ("train.py:9: a captured step must not wait for the device", "waits for the device on the line", "tensor"),
        ("utils.py:1645: operation not permitted when stream is capturing", "uses another stream", "move the line out"),
        ("Trainer.fit keeps control of its loop, so that no step", "A library runs the whole loop", "write a loop"),
    ],
)
def test_a_capture_that_failed_for_a_known_reason_shows_this_cause_and_its_remedy(
    said: str, cause: str, remedy: str
) -> None:
    """Claims that are undecided because of this capture show the same cause, because their messages quote it."""
    failed = of_code("not_captured").model_copy(update={"message": said})
    [found] = labelled(advice_on(view_of(failed)), "likely cause")
    assert cause in found
    [next_step] = labelled(advice_on(view_of(failed)), "next")
    assert remedy in next_step
    never = of_code("candidate_not_captured").model_copy(update={"message": f"arm a never replayed a capture: {said}"})
    assert labelled(advice_on(view_of(never)), "likely cause") == [found]
    assert f"{remedy_of(never, view_of(never))}." == next_step


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("step 1 of captured issued 406 operations outside its graphs, but at most 100 are allowed", "only in part"),
        ("replayed a capture 3 times in 9 steps and ran 6 steps outside the capture", "not used in some steps"),
    ],
)
def test_advice_on_a_step_that_was_captured_in_part_does_not_speak_of_a_failed_capture(said: str, cause: str) -> None:
    unit = of_code("candidate_not_captured").model_copy(update={"message": said})
    [found] = labelled(advice_on(view_of(unit)), "likely cause")
    assert cause in found
    assert "fix the capture first" not in str(remedy_of(unit, view_of(unit)))


def test_advice_on_repeated_batches_names_the_data_as_the_cause() -> None:
    found = advice_on(view_of(of_code("vacuous_batches_repeat")))
    assert labelled(found, "what usually causes this")[0].startswith("The data gives the same batch again")
    assert labelled(found, "next")[0].startswith("give every step a different batch")
    assert labelled(found, "what the contract says") == []


def test_a_reason_code_of_an_installed_claim_kind_shows_the_causes_of_its_claim() -> None:
    found = advice_on(view_of(verdict("F-GRAPH-BWD-001", status=Status.FAIL, reason="toy_too_loud")))
    assert labelled(found, "what usually causes this") == [IF_FAILS]


@pytest.mark.parametrize("status", [Status.PASS, Status.NOT_RUN])
def test_a_passed_or_unrun_unit_gets_no_cause(status: Status) -> None:
    assert advice_on(view_of(verdict("F-GRAPH-BWD-001", status=status))) == []


def judged(candidate: ArmEvidence) -> tuple[Verdict, list[Advice]]:
    """The verdict on a candidate beside a baseline that trained as it should, and what is said with it."""
    contract = contract_of(TRAJECTORY)
    run = paired(candidate, *twice("ungraphed"), untrained())
    seen = judge_unit(contract, contract.claims[0], "w", [run])
    return seen, advice_of(seen, contract.claims[0], [run], ASKED)


def test_differing_losses_are_reported_with_the_end_state_that_differs() -> None:
    seen, found = judged(graphed(LOSSES + 1e-6, end_state={"optimizer": {"p0.exp_avg": "another"}}))
    assert seen.reason == "differs"
    assert labelled(found, "what differs") == ["at the end 1 tensor: optimizer p0.exp_avg"]


@pytest.mark.parametrize(
    ("first", "factor", "where"),
    [
        (
            0,
            4.0,
            "step 0: 12, and 3 in the baseline, 4 times: no update came before this step, so look at the forward pass",
        ),
        (
            1,
            1.01,
            "step 1: 2.91778, and 2.88889 in the baseline: the first forward pass agreed, so look at the gradients",
        ),
        (5, 1.01, "5 steps agreed, so look for a cause that has no effect yet in the first update"),
    ],
)
def test_the_first_differing_step_determines_the_advice_where_to_look(first: int, factor: float, where: str) -> None:
    losses = LOSSES.copy()
    losses[first:] *= factor
    seen, found = judged(graphed(losses))
    assert seen.reason == "differs"
    assert where in labelled(found, "where it begins")[0]


@pytest.mark.parametrize(("code", "lines"), [("differs", 1), ("end_differs", 1), ("not_restored", 0)])
def test_a_resume_that_restored_everything_gets_the_advice_to_look_for_plain_numbers(code: str, lines: int) -> None:
    contract = contract_of({"id": "F-GRAPH-BWD-001", **RESUME})
    found = advice_of(of_code(code), contract.claims[0], [], ASKED)
    assert len(labelled(found, "where it begins")) == lines


def test_an_unequal_start_is_reported_with_its_tensors() -> None:
    seen, found = judged(graphed(start="elsewhere"))
    assert seen.reason == "unequal_start"
    assert labelled(found, "what differs") == [
        "at the start 4 tensors: parameters p0, parameters p1, parameters p2 and 1 more"
    ]


def test_tensors_that_only_the_candidate_left_unchanged_are_reported_with_the_end_difference() -> None:
    """Such tensors show that an update, or a statistic, is not part of the replays."""
    seen, found = judged(graphed(LOSSES + 1e-6, end="start"))
    assert seen.reason == "differs"
    named = "parameters p0, parameters p1, parameters p2 and 1 more"
    assert labelled(found, "what differs") == [
        f"at the end 4 tensors: {named}",
        f"graphed left 4 tensors unchanged, which ungraphed changed: {named}",
    ]


def ending_with(execution: ArmEvidence, numbers: dict[str, float]) -> ArmEvidence:
    """The execution, at the end of which the tensors of one number have these values."""
    assert execution.end is not None
    assert execution.end.state is not None
    ended = execution.end.state.model_copy(update={"numbers": numbers})
    return replace(execution, end=execution.end.model_copy(update={"state": ended}))


def test_counters_that_end_different_are_reported_with_both_values() -> None:
    """The difference may be the number of warm-up steps.

    Equal counters, and counters of only one arm, are not reported.
    """
    contract = contract_of(TRAJECTORY)
    candidate = graphed(LOSSES + 1e-6)
    ours = ending_with(candidate, {"buffers norm.batches": 13.0, "optimizer p0.step": 10.0, "buffers own": 1.0})
    theirs = [
        ending_with(each, {"buffers norm.batches": 10.0, "optimizer p0.step": 10.0}) for each in twice("ungraphed")
    ]
    run = paired(ours, *theirs, untrained())
    seen = judge_unit(contract, contract.claims[0], "w", [run])
    assert labelled(advice_of(seen, contract.claims[0], [run], ASKED), "what differs") == [
        "at the end, numbers of graphed differ from those of ungraphed: buffers norm.batches 13, not 10"
    ]


def test_equal_end_states_name_no_difference() -> None:
    _, found = judged(graphed(LOSSES + 1e-6))
    assert labelled(found, "what differs") == []


def test_host_state_changed_by_a_captured_step_is_named_as_the_likely_cause() -> None:
    changes = ["optimizer.updates (0, then 1)", *(f"moments.{index} (another Tensor)" for index in range(6))]
    capture = cuda_graph(host_changes=changes)
    _, found = judged(graphed(LOSSES + 1e-6, capture=capture))
    [told_of] = labelled(found, "likely cause")
    assert told_of.startswith("while it was captured, the step of graphed changed optimizer.updates (0, then 1), ")
    assert told_of.endswith("moments.3 (another Tensor) and 2 more; no replay does that again")
    _, otherwise = judged(graphed(capture=capture, start="elsewhere"))
    assert labelled(otherwise, "likely cause") == []


def test_an_arm_that_a_frozen_condition_kept_from_training_is_not_advised_about_its_optimizer() -> None:
    """The optimizer is correct, but a Python condition decides about its update, and replays do not evaluate this
    condition.
    """
    number = HostNumber(name="calls", read="compared at train.py:22")
    counted = cuda_graph(host_changes=["calls (0, then 1)"])
    still = of_code("vacuous_parameters_unchanged")

    def advice_on(capture: Any) -> list[Advice]:
        run = paired(graphed(capture=capture), arm("ungraphed"), untrained())
        return advice_of(still, contract().claims[0], [run], ASKED)

    found = advice_on(counted.model_copy(update={"host_numbers": [number]}))
    [cause] = labelled(found, "likely cause")
    assert cause.startswith("while it was captured, the step of graphed changed calls (0, then 1); no replay does that")
    assert cause.endswith(", although the step reads calls (compared at train.py:22)")
    assert labelled(found, "what usually causes this") == []
    assert labelled(found, "next")[0].startswith("put what changes from step to step into the batch")
    # a count that the step does not read does not keep an optimizer from its update
    assert labelled(advice_on(counted), "likely cause") == []
    assert labelled(advice_on(counted), "next")[0].startswith("create the optimizer from the model's parameters")


def test_a_captured_step_that_asks_whether_it_is_captured_is_named_as_the_likely_cause() -> None:
    capture = cuda_graph(asked_whether_captured=["masks.py:3, called at train.py:9 in step `loss = model(x)`"])
    _, found = judged(graphed(LOSSES + 1e-6, capture=capture))
    [cause] = labelled(found, "likely cause")
    assert cause.startswith(
        "during its capture, the step of graphed asked whether a capture is running, and may train differently "
        "because of the answer: "
    )
    assert cause.endswith(": masks.py:3, called at train.py:9 in step `loss = model(x)`")
    _, otherwise = judged(graphed(capture=capture, start="elsewhere"))
    assert labelled(otherwise, "likely cause") == []


HANGS = """Current thread 0x00007f (most recent call first):
  File "torch/cuda/streams.py", line 94 in synchronize
  File "reference_impl/trainer.py", line 31 in step
  File "reference_impl/system.py", line 7 in open
  File "harness/execution/worker.py", line 60 in main
"""
RAISED = """Traceback (most recent call last):
  File "reference_impl/system.py", line 7, in open
    return run.step()
  File "reference_impl/trainer.py", line 31, in step
  File "torch/_tensor.py", line 1, in item
"""


@pytest.mark.parametrize("stack", [HANGS, RAISED])
def test_the_innermost_line_of_the_systems_code_is_found_in_a_stack(stack: str) -> None:
    assert own_line(stack, ["reference_impl.system:QLoRASystem"]) == "reference_impl/trainer.py:31 in step"
    assert own_line(stack, ["elsewhere:System"]) is None


def test_a_run_that_hung_is_reported_with_the_systems_source_line() -> None:
    death = Death(cause="heartbeat", detail="no progress for 60 s", phase="graphed: steps", stack=HANGS)
    run = RunEvidence("tiny-paired", "paired", {}, death=death)
    unit = {"contract": CONTRACT["id"], "claim": "F-GRAPH-BWD-001", "workload": "tiny", "runs": ["tiny-paired"]}
    item = of_code("worker_heartbeat")
    found = advice_on(replace(view_of(item, units=[unit]), evidence={"tiny-paired": run}))
    assert labelled(found, "in the system's own code") == ["reference_impl/trainer.py:31 in step"]


@pytest.mark.parametrize(
    ("code", "asked", "command"),
    [
        ("differs", "harness verify contracts/ --gate", "harness verify contracts/ --claim C --workload 'a w'"),
        ("differs", "harness verify --name x a.yaml --json", "harness verify a.yaml --claim C --workload 'a w'"),
        (
            "differs",
            "harness verify 'my contracts/a b.yaml'",
            "harness verify 'my contracts/a b.yaml' --claim C --workload 'a w'",
        ),
        (
            "differs",
            "harness verify contracts/cuda-graph-backward-v1.yaml b.yaml",
            "harness verify contracts/cuda-graph-backward-v1.yaml --claim C --workload 'a w'",
        ),
        ("differs", "harness verify '<folder>/a.yaml'", None),
        ("differs", "harness verify a.yaml b.yaml", "harness verify a.yaml b.yaml --claim C --workload 'a w'"),
        ("undecided_ratio", "harness verify contracts/", "harness verify contracts/ --claim C --workload 'a w'"),
        (
            "worker_signal",
            "harness verify a/ --baseline main --reports out --data=text.txt --tag fast",
            "harness verify a/ --baseline main --data text.txt --claim C --workload 'a w'",
        ),
        ("worker_signal", "harness drill a/ --fault nan_tail", "harness verify a/ --claim C --workload 'a w'"),
        ("worker_signal", "pytest -q", None),
        ("worker_signal", "harness try train.py:make_step --name x", "harness try train.py:make_step"),
    ],
)
def test_the_command_that_repeats_a_unit_has_the_units_names_quoted_for_a_shell(
    code: str, asked: str, command: str | None
) -> None:
    item = verdict("C", workload="a w", status=REASONS[code].status, reason=code)
    assert command_for(item, shlex.split(asked)) == command


@pytest.mark.parametrize(("command", "again"), [("verify", " --fault stale_batch"), ("drill", "")])
def test_the_command_to_repeat_a_faulted_unit_includes_the_fault(command: str, again: str) -> None:
    """Without the fault, the command would repeat another unit. Units of a drill are controls, which have no fault."""
    item = verdict("C", status=Status.ERROR, reason="worker_exception")
    found = command_for(item, ["harness", command, "contracts", "--fault", "stale_batch"])
    assert found == f"harness verify contracts{again} --claim C --workload tiny"


def test_figures_of_the_failed_part_are_listed_first() -> None:
    claim = contract_of(
        {"id": "BOTH", "kind": "composite", "parts": [PART_OF_TWO, {"kind": "capture", "candidate": "graphed"}]}
    ).claims[0]
    figures = {name: Figure(value=value) for name, value in FIGURES_OF_TWO.items()}
    item = verdict("BOTH", status=Status.FAIL, reason="lost_step", figures=figures)
    assert list(telling_figures(item, claim)) == [
        "capture.status",
        "capture.replays",
        "trajectory_match.status",
        "trajectory_match.noise_floor",
    ]


PART_OF_TWO = {name: value for name, value in TRAJECTORY.items() if name != "id"}
FIGURES_OF_TWO = {
    "trajectory_match.status": "PASS",
    "trajectory_match.noise_floor": 0.0,
    "capture.status": "FAIL",
    "capture.replays": 9,
}


def in_terminal(view: ReportView) -> str:
    stream = io.StringIO()
    print_results(view, stream)
    return stream.getvalue()


@pytest.mark.parametrize("show", [in_terminal, render_junit, render_markdown, render])
@pytest.mark.parametrize("code", ["vacuous_batches_repeat", "differs", "worker_signal"])
def test_every_output_format_shows_the_same_advice(show: Callable[[ReportView], str], code: str) -> None:
    view = view_of(of_code(code))
    shown = re.sub(r"<[^>]+>|\\", "", html.unescape(show(view)))
    for each in advice_on(view):
        assert each.text in shown
        assert each.label.lower() in shown.lower()


@pytest.fixture
def reworded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within a test one text has other words."""
    for path in TEXTS.glob("*.yaml"):
        text = path.read_text(encoding="utf-8").replace("The arms compute different numbers", "Twelve bananas compute")
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(wording, "TEXTS", tmp_path)
    wording.reasons.cache_clear()
    yield
    wording.reasons.cache_clear()


@pytest.mark.usefixtures("reworded")
@pytest.mark.parametrize("show", [in_terminal, render_junit, render_markdown, render])
def test_a_changed_meaning_in_reason_texts_appears_in_every_output_format(
    show: Callable[[ReportView], str],
) -> None:
    shown = html.unescape(show(view_of(of_code("differs"))))
    assert "Twelve bananas compute from equal batches" in shown
    assert "The arms compute different numbers" not in shown


def test_the_reason_texts_are_not_read_if_no_reason_is_shown() -> None:
    wording.reasons.cache_clear()
    in_terminal(view_of(verdict("F-GRAPH-BWD-001")))
    assert wording.reasons.cache_info().misses == 0


def test_the_texts_of_each_reason_code_are_in_exactly_one_file() -> None:
    codes = [code for path in wording.reason_files() for code in read(path, "a file of texts").value]
    assert sorted(codes) == sorted(REASONS)


def test_a_reason_text_with_an_unknown_field_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reasons.yaml").write_text("differs: {meaning: A value differs., remedy: Look at it.}\n")
    monkeypatch.setattr(wording, "TEXTS", tmp_path)
    with pytest.raises(ValidationError, match=r"differs\.remedy"):
        wording.reasons.__wrapped__()


@pytest.mark.parametrize(
    ("near", "look"),
    [
        (0, "no update came before this step, so look at the forward pass"),
        (1, "the first forward pass agreed, so look at the gradients of step 0"),
        (3, "3 steps agreed, so look for a cause that has no effect yet in the first update"),
    ],
)
def test_a_loss_beyond_the_tolerance_is_not_reported_as_the_first_difference(near: int, look: str) -> None:
    losses = LOSSES.copy()
    losses[near:] += 1e-6
    losses[5:] *= 2.0
    contract = contract_of({**TRAJECTORY, "equality": "within"})
    run = paired(graphed(losses), *twice("ungraphed"), untrained())
    seen = judge_unit(contract, contract.claims[0], "w", [run])
    [sentence, *_] = labelled(advice_of(seen, contract.claims[0], [run], ASKED), "where it begins")
    assert seen.reason == "exceeds_tolerance"
    assert sentence.startswith("the losses first differ by more than the tolerance at step 5: ")
    assert f"they already differ from step {near} on, within the tolerance: {look}" in sentence
    assert ("no effect yet" in sentence) == (near > 1)


def test_every_flag_of_verify_and_drill_is_known_to_take_no_value() -> None:
    """If a flag were not known, the word after it (a path or an option) would be taken for its value."""
    commands = cast("Any", typer.main.get_command(application([]))).commands
    flags = [
        option
        for name in ("verify", "drill")
        for parameter in commands[name].params
        if getattr(parameter, "is_flag", False)
        for option in (*parameter.opts, *parameter.secondary_opts)
    ]
    assert sorted({*flags} - {*FLAGS, "--help"}) == []
    assert command_to_plant(shlex.split("harness verify --no-where contracts --claim X")) == (
        "harness drill contracts --claim X"
    )


@pytest.mark.parametrize("option", ["--baseline main", "--data=text.txt", "--model model"])
def test_no_drill_command_is_suggested_if_verify_was_called_with_options_unknown_to_drill(option: str) -> None:
    assert command_to_plant(shlex.split(f"harness verify contracts {option}")) is None


def test_one_command_repeats_several_units_of_a_contract() -> None:
    units = [verdict(claim, status=Status.NOT_RUN, reason="needs_gpu") for claim in ("A", "B")]
    view = view_of_units(Status.PASS, header=header(command=shlex.split("harness verify contracts --gate")))
    assert repeats_units(view, units) == "harness verify contracts --claim A --workload tiny --claim B"
    tried = view_of_units(Status.PASS, header=header(command=shlex.split("harness try train.py:make_step --steps 40")))
    assert repeats_units(tried, units) == "harness try train.py:make_step --steps 40"
