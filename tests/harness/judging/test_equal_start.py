"""Where a start differs, the sentence names what differs, and how it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from evidence_builders import TRAJECTORY, arm, graphed, trajectory_run, verdict_of

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
    assert message(beginning(ours, base), beginning(theirs, base)) == "frozen parameters: their values differ"


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
