"""What a claim of kind step_accuracy may not say, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from harness.kinds.steps.model import StepAccuracy


def claim(**changes: Any) -> StepAccuracy:
    given = {
        "kind": "step_accuracy",
        "candidate": "ours",
        "peer": "theirs",
        "reference": "exact",
        "gradient_seeds": [4, 1],
        "gradient_steps": [1, 9],
        "median_gradient_ratio_at_most": 1.2,
        "gradient_ratio_at_most": 2.0,
        "loss_seeds": [1, 7],
        "loss_steps": 10,
        "loss_ratio_at_most": 1.2,
    }
    return TypeAdapter(StepAccuracy).validate_python(given | changes)


def test_a_step_accuracy_claim_runs_every_seed_once() -> None:
    assert claim().seeds() == [1, 4, 7]


def test_a_step_accuracy_claim_names_three_arms() -> None:
    assert claim().arms() == {"candidate": "ours", "peer": "theirs", "reference": "exact"}
    assert list(claim().contradictions()) == []


@pytest.mark.parametrize(
    ("field", "value", "got"),
    [
        ("gradient_seeds", [1, 1], "[1, 1]"),
        ("gradient_steps", [9, 9], "[9, 9]"),
        ("loss_seeds", [0, 2, 0], "[0, 2, 0]"),
        ("peer", "ours", "'ours' again"),
        ("reference", "theirs", "'theirs' again"),
    ],
)
def test_a_seed_step_or_arm_that_a_step_accuracy_claim_names_twice_is_refused(
    field: str, value: object, got: str
) -> None:
    [problem] = claim(**{field: value}).contradictions()
    assert (problem.path, problem.got) == ((field,), got)


def test_step_accuracy_steps_must_be_within_the_workload() -> None:
    assert list(claim().beyond(10)) == []
    assert [path for path, _ in claim().beyond(9)] == [("gradient_steps", 1), ("loss_steps",)]
