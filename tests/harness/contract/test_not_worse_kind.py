"""What a claim over several seeds may state, and what `check` reports about a claim that cannot be decided."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from harness.kinds.seeds.model import NotWorse
from harness.kinds.trajectory.model import Repeatability, TrajectoryMatch

CLAIM: dict[str, Any] = {
    "kind": "not_worse",
    "candidate": "ours",
    "baseline": "theirs",
    "direction": "lower_is_better",
    "last": 20,
    "margin": 0.02,
    "seeds": [0, 1, 2, 3, 4],
    "guards": {"steps": 100, "training_effect": {"control": "untrained", "last": 20, "at_least": 0.2}},
}


def claim(**changes: Any) -> NotWorse:
    return TypeAdapter(NotWorse).validate_python(CLAIM | changes)


def refusal(model: Any, given: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(model).validate_python(given)
    [error] = caught.value.errors()
    return f"{error['loc']}: {error['msg']}"


def test_a_not_worse_claim_names_three_arms_and_lists_fields_that_need_more_steps_than_the_workload_has() -> None:
    part = claim()
    assert part.arms() == {"candidate": "ours", "baseline": "theirs", "guards.training_effect.control": "untrained"}
    assert [path for path, _ in part.beyond(10)] == [
        ("last",),
        ("guards", "steps"),
        ("guards", "training_effect", "last"),
    ]
    assert part.process_count() == 1


def test_a_metric_other_than_loss_requires_systems_that_report_metrics() -> None:
    assert claim().candidate_capabilities() == claim().baseline_capabilities() == frozenset()
    other = claim(metric="accuracy")
    assert other.candidate_capabilities() == other.baseline_capabilities() == {"metrics"}


def test_a_not_worse_claim_can_fail_only_by_the_bounds_that_it_states() -> None:
    assert set(claim().demanded()) == {
        "direction",
        "margin",
        "guards.steps",
        "guards.training_effect.at_least",
    }
    assert "relative_margin" in claim(margin=None, relative_margin=0.1).demanded()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"margin": None}, "(): the claim needs exactly one margin; give either `margin` or `relative_margin`"),
        ({"relative_margin": 0.1}, "(): the claim needs exactly one margin; give either `margin` or `relative_margin`"),
        ({"margin": 0.0}, "('margin',): Input should be greater than 0"),
        ({"seeds": [0, 1, 2, 3]}, "('seeds',): List should have at least 5 items after validation, not 4"),
        ({"confidence": 0.9}, "('confidence',): Input should be greater than or equal to 0.95"),
        ({"direction": "lower"}, "('direction',): Input should be 'lower_is_better' or 'higher_is_better'"),
        ({"metric": "a b"}, "('metric',): String should match pattern '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'"),
    ],
)
def test_an_invalid_not_worse_claim_is_refused_with_its_reason(changes: dict[str, Any], told: str) -> None:
    assert refusal(NotWorse, CLAIM | changes) == told


def test_seeds_and_precisions_of_a_not_worse_claim_are_distinct() -> None:
    same = {"candidate": "float32", "baseline": "float32"}
    found = list(claim(seeds=[0, 1, 2, 3, 3], precisions=same).contradictions())
    assert [(problem.path, problem.rule) for problem in found] == [
        (("seeds",), "`seeds` must not name a seed twice"),
        (("precisions",), "`precisions` must be two different precisions"),
    ]


def test_check_reports_a_claim_with_too_few_seeds_for_its_confidence() -> None:
    [problem] = claim(confidence=0.99).undecidable()
    assert problem.path == ("seeds",)
    assert problem.rule == (
        "5 seeds cannot reach a verdict: even if all 5 seeds agree, chance explains it with a probability of 0.0312, "
        "above 1 - confidence = 0.01; use at least 7"
    )
    assert list(claim(confidence=0.99, seeds=list(range(7))).undecidable()) == []


TRAJECTORY: dict[str, Any] = {
    "kind": "trajectory_match",
    "candidate": "a",
    "baseline": "b",
    "equality": "within",
    "guards": {"steps": 10},
}

REPEATED = {name: value for name, value in TRAJECTORY.items() if name != "baseline"} | {"kind": "repeatability"}


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (TrajectoryMatch, TRAJECTORY),
        (
            Repeatability,
            {key: value for key, value in TRAJECTORY.items() if key != "baseline"} | {"kind": "repeatability"},
        ),
    ],
)
def test_a_comparison_without_a_bound_is_refused(model: Any, given: dict[str, Any]) -> None:
    assert refusal(model, given) == "(): give `max_abs_difference`, `max_relative_difference` or both"


def test_each_of_two_bounds_can_be_named_as_the_bound_that_a_fault_exceeds() -> None:
    both = TypeAdapter(TrajectoryMatch).validate_python(
        TRAJECTORY | {"max_abs_difference": 0.1, "max_relative_difference": 0.01}
    )
    assert {path: demand.figures.get("exceeded_bound") for path, demand in both.demanded().items()} == {
        "max_abs_difference": "max_abs_difference",
        "max_relative_difference": "max_relative_difference",
        "guards.steps": None,
    }
