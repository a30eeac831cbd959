"""What claims of the kinds resume and evaluation may ask of a workload, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from harness.kinds.between_steps.model import Evaluation, Resume


def resume(**changes: Any) -> Resume:
    given = {
        "kind": "resume",
        "candidate": "ours",
        "save_at": 6,
        "steps": 4,
        "equality": "bitwise",
        "max_abs_difference": 0.1,
    }
    return TypeAdapter(Resume).validate_python(given | changes)


def evaluation(**changes: Any) -> Evaluation:
    given = {"kind": "evaluation", "candidate": "ours", "every": 3, "evaluations": 3, "steps": 10}
    return TypeAdapter(Evaluation).validate_python(given | changes)


def test_the_uninterrupted_arm_of_a_resume_claim_defaults_to_the_candidate() -> None:
    assert resume().arms() == {"candidate": "ours"}
    assert resume(baseline="plain").arms() == {"candidate": "ours", "baseline": "plain"}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"save_at": 10}, [(("save_at",), "`save_at` (10) must be smaller than the workload's number of steps")]),
        ({"steps": 5}, [(("steps",), "`steps` (5) must be at most 4, the number of steps after `save_at`")]),
        ({"save_at": [3, 6]}, []),
        ({"save_at": [3, 10]}, [(("save_at",), "`save_at` (10) must be smaller than the workload's number of steps")]),
        ({"save_at": [3, 7]}, [(("steps",), "`steps` (4) must be at most 3, the number of steps after `save_at`")]),
        (
            {"steps_before_load": 11},
            [(("steps_before_load",), "`steps_before_load` (11) must not exceed the workload's steps")],
        ),
    ],
)
def test_a_save_after_which_fewer_steps_follow_than_the_claim_requires_is_refused(
    changes: dict[str, Any], broken: list[Any]
) -> None:
    assert list(resume(**changes).beyond(10)) == broken


@pytest.mark.parametrize(("saves", "refused"), [(6, 0), ([6], 0), ([3, 6], 0), ([6, 6], 1), ([6, 3], 1)])
def test_save_steps_that_do_not_increase_are_refused(saves: Any, refused: int) -> None:
    assert len(list(resume(save_at=saves).contradictions())) == refused


@pytest.mark.parametrize("saves", [[], [0, 3], list(range(1, 10)), 0])
def test_invalid_save_steps_are_refused(saves: Any) -> None:
    with pytest.raises(ValidationError):
        resume(save_at=saves)


def test_a_single_save_step_is_read_as_a_list_and_stored_as_written() -> None:
    """The recorded settings of a run contain the number or the list that is in the contract."""
    assert (resume().saves, resume().save_at, resume(save_at=[6]).save_at) == ([6], 6, [6])


def test_a_resume_claim_requires_either_equal_bits_or_its_bound() -> None:
    assert set(resume().demanded()) == {"equality", "steps"}
    assert set(resume(equality="within").demanded()) == {"max_abs_difference", "steps"}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        (
            {"evaluations": 4},
            [
                (
                    ("evaluations",),
                    "`evaluations` (4) must be at most 3, the number of evaluations in the workload's steps",
                )
            ],
        ),
        ({"steps": 11}, [(("steps",), "`steps` (11) must not exceed the workload's steps")]),
    ],
)
def test_evaluations_must_fit_into_the_steps_of_the_workload(changes: dict[str, Any], broken: list[Any]) -> None:
    assert list(evaluation(**changes).beyond(10)) == broken


def test_only_the_candidate_needs_the_resume_or_evaluate_capability() -> None:
    assert resume(baseline="plain").candidate_capabilities() == {"resume"}
    assert resume(baseline="plain").baseline_capabilities() == frozenset()
    assert evaluation().candidate_capabilities() == {"evaluate"}
