"""Where a start differs, the sentence names what differs, and how it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from evidence_builders import TRAJECTORY, arm, graphed, trajectory_run, verdict_of
from judge_cases_training import DTYPES, trajectory

from harness.evidence.run_evidence import ArmEvidence

NAMES = [f"p{index}" for index in range(4)]
PLAIN = {f"parameters {name}": "float32 [4, 2]" for name in NAMES} | {"buffers mean": "float32 [4]"}
HALF = {name: form.replace("float32", "bfloat16") for name, form in PLAIN.items()}


def beginning(
    execution: ArmEvidence, forms: Mapping[str, str] | None, numbers: Mapping[str, float] | None = None
) -> ArmEvidence:
    """Return the execution with what its recorder saw of the tensors that it starts from."""
    assert execution.start.state is not None
    seen = {"forms": forms, "numbers": numbers}
    state = execution.start.state.model_copy(update=seen)
    return replace(execution, start=execution.start.model_copy(update={"state": state}))


def message(candidate: ArmEvidence, baseline: ArmEvidence) -> str:
    verdict = verdict_of(TRAJECTORY, trajectory_run(candidate, baseline))
    assert verdict.reason == "unequal_start"
    words = verdict.message.removeprefix("candidate graphed and baseline ungraphed start from different ")
    return words.replace("candidate graphed", "ours").replace("baseline ungraphed", "theirs")


def test_unequal_parameters_are_named_with_their_common_difference() -> None:
    theirs = arm("ungraphed", names=NAMES)
    for form, how in (
        ("bfloat16 [4, 2]", "bfloat16 in ours, float32 in theirs"),
        ("float32 [2, 4]", "[2, 4] in ours, [4, 2] in theirs"),
        ("bfloat16 [8]", "bfloat16 [8] in ours, float32 [4, 2] in theirs"),
    ):
        ours = beginning(graphed(start="x", names=NAMES), PLAIN | {f"parameters {name}": form for name in NAMES})
        named = "parameters p0, parameters p1, parameters p2 and 1 more"
        assert message(ours, beginning(theirs, PLAIN)) == f"trainable parameters: {named} ({how})"


def test_parameters_with_equal_forms_are_reported_by_name_only() -> None:
    ours, theirs = graphed(start="x", names=NAMES), arm("ungraphed", names=NAMES)
    named = "trainable parameters: parameters p0, parameters p1, parameters p2 and 1 more"
    assert message(beginning(ours, PLAIN), beginning(theirs, PLAIN)) == named
    assert message(ours, theirs) == named  # evidence from before forms were recorded


def test_older_evidence_shows_data_types_and_numbers_of_tensors() -> None:
    theirs = arm("ungraphed", names=NAMES)
    ours = graphed(start="x", names=NAMES, dtypes=["bfloat16"])
    assert message(ours, theirs).endswith(" and 1 more (bfloat16 in ours, float32 in theirs)")
    ours = graphed(start="x", tensors=3)
    assert message(ours, arm("ungraphed")) == "trainable parameters: 3 tensors in ours, 2 in theirs"


def test_unequal_frozen_parameters_are_reported_by_form_or_as_values() -> None:
    ours, theirs = graphed(frozen="x"), arm("ungraphed")
    assert message(ours, theirs) == "frozen parameters: their values differ"
    base = PLAIN | {"frozen w": "bfloat16 [8]"}
    quantized = message(beginning(ours, base | {"frozen w": "uint8 [8]"}), beginning(theirs, base))
    assert quantized == "frozen parameters: frozen w (uint8 in ours, bfloat16 in theirs)"
    for seen in (base, None):  # an older version recorded no forms of the baseline's parameters
        assert message(beginning(ours, base), beginning(theirs, seen)) == "frozen parameters: their values differ"
        assert message(beginning(ours, seen), beginning(theirs, base)) == "frozen parameters: their values differ"


@pytest.mark.parametrize(
    ("state", "numbers", "words"),
    [
        ({"buffers": {"mean": "x"}}, None, "state: buffers mean"),
        ({"optimizer": {"group0.lr": "y"}}, None, "state: optimizer group0.lr"),
        (
            {"optimizer": {"group0.lr": "y"}, "buffers": {"mean": "x"}, "tensors": {"ema": "e"}},
            {"optimizer group0.lr": 0.01},
            "state: tensors ema (only in ours), buffers mean, optimizer group0.lr (0.01 in ours, 0.1 in theirs)",
        ),
    ],
)
def test_an_unequal_start_shows_numbers_and_lists_tensors_first(
    state: dict[str, Any], numbers: Mapping[str, float] | None, words: str
) -> None:
    theirs = beginning(
        arm("ungraphed", start_state={"optimizer": {"group0.lr": "x"}}), PLAIN, {"optimizer group0.lr": 0.1}
    )
    assert (
        message(beginning(graphed(start_state={"optimizer": {"group0.lr": "x"}, **state}), PLAIN, numbers), theirs)
        == words
    )


def test_only_parameters_that_one_arm_trains_are_named() -> None:
    named = "trainable parameters: parameters p1"
    assert message(graphed(start="x", names=["p1"]), arm("ungraphed", names=None)) == named
    assert message(graphed(start="x", names=None), arm("ungraphed", names=["p1"])) == named


def test_of_rounded_parameters_those_are_named_whose_difference_is_more_than_rounding() -> None:
    other = {"p1": "bfloat16 [2, 4]", "p2": "float32 [4, 2]"}
    halves = {f"parameters {name}": other.get(name, "bfloat16 [4, 2]") for name in NAMES}
    ours = beginning(graphed(start="x", names=NAMES, dtypes=["bfloat16"], rounded="x"), halves)
    theirs = beginning(arm("ungraphed", names=NAMES, rounded="y"), PLAIN)
    verdict = verdict_of(TRAJECTORY | DTYPES, trajectory_run(ours, theirs))
    assert verdict.message.endswith(
        "different rounded parameters: parameters p1 (bfloat16 [2, 4] in candidate graphed, float32 [4, 2] in baseline "
        "ungraphed), parameters p2"
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        ({"tensors": {"a": "x"}}, {"tensors": {"a": "x", "copy": "x"}}, None),
        ({"tensors": {"a": "x", "more": "y"}}, {"tensors": {"a": "x"}}, None),
        ({"tensors": {"a": "x"}}, {"tensors": {"a": "x", "b": "y", "c": "y"}}, "tensors b, tensors c"),
        ({}, {"buffers": {"mean": "b", "copy": "b"}}, "buffers copy"),
    ],
)
def test_of_tensors_that_only_the_baseline_has_copies_are_allowed_within_a_bound(
    ours: dict[str, Any], theirs: dict[str, Any], named: str | None
) -> None:
    run = trajectory_run(graphed(start_state=ours), arm("ungraphed", start_state=theirs))
    verdict = verdict_of(TRAJECTORY | {"equality": "within"}, run)
    assert verdict.reason == ("unequal_start" if named else "held")
    assert named is None or verdict.message.endswith(f"different state: {named} (only in baseline ungraphed)")


@pytest.mark.parametrize(
    ("generators", "reason"),
    [({"torch.cpu": "g", "torch.cuda:0": "c"}, "held"), ({"torch.cpu": "g", "numpy": "n"}, "unequal_start")],
)
def test_only_a_generator_of_a_gpu_may_appear_after_the_start(generators: dict[str, str], reason: str) -> None:
    assert trajectory(graphed(start_state={"generators": generators})).reason == reason
