"""How far apart rounding may take a tensor's ends, by most parameters, by its control and by its own roundings."""

from __future__ import annotations

import math

import pytest
from evidence_builders import arm, graphed
from judge_cases_ends import moved, near

from harness.judging.controls import Rounding, measured_rounding, moved_by_rounding
from harness.judging.end_state import own_name
from harness.judging.near_ends import Tensor

FLOAT32 = Rounding(ratio=1.0, share=1e-6)
COARSE = Rounding(ratio=500.0, share=1e-6)


@pytest.mark.parametrize(
    ("apart", "control", "rounding", "steps", "explained"),
    [
        (0.9e-5, 0.0, FLOAT32, 1, True),  # ten times the median parameter's share of a way of 1
        (1.1e-5, 0.0, FLOAT32, 1, False),
        (0.9e-3, 1e-4, FLOAT32, 1, True),  # ten times its own control
        (4.9e-3, 0.0, COARSE, 1, True),  # an arm that rounds 500 times as much
        (5.1e-3, 0.0, COARSE, 1, False),
        (5.9e-5, 0.0, FLOAT32, 1000, True),  # 2^-24 of its size in each step
        (6.1e-5, 0.0, FLOAT32, 1000, False),
        (1.0, math.inf, FLOAT32, 1, False),
        (math.nan, 1.0, FLOAT32, 1, False),
    ],
)
def test_an_end_distance_is_explained_by_the_largest_of_control_rounding_and_steps(
    apart: float, control: float, rounding: Rounding, steps: int, explained: bool
) -> None:
    tensor = Tensor("tensors average", apart, moved=1.0, size=1.0, control=control)
    assert tensor.is_explained(rounding, steps) is explained


def test_the_rounding_of_an_arm_is_measured_by_the_median_parameter() -> None:
    distances = [Tensor(f"parameters {n}", n * 1e-3, 0.5, 10.0, n * 0.25e-6) for n in (1, 2, 3)]
    outlier = Tensor("parameters 4", 1.0, 0.5, 10.0, 0.25e-6)
    unmeasured = [outlier._replace(moved=math.inf), outlier._replace(control=math.inf)]
    found = measured_rounding([*distances, outlier, *unmeasured])
    assert found == pytest.approx((4000.0, 0.75e-6))
    assert found.capped(0.5) == 10
    assert found.capped(5e-5) == pytest.approx(5e-5 / 0.75e-5)


def test_a_control_that_does_not_move_measures_no_rounding() -> None:
    assert measured_rounding([Tensor("parameters 0", 1.0, 2.0, 10.0, 0.0)]) == (1.0, 0.0)


def test_rounding_reaches_as_far_as_the_largest_finite_distance_of_its_control_until_then() -> None:
    control, baseline = graphed([math.inf, 1e308, 2.0, 1.0, 5.0]), arm("ungraphed", [math.inf, -1e308, 1.5, 1.0])
    assert moved_by_rounding(control, baseline, "loss").tolist() == [0.0, 0.0, 5.0, 5.0]


def test_a_number_of_an_optimizer_is_compared_by_its_own_name() -> None:
    paths = "built.optimizer.group0.count", "built.optimizer.state.12.step", "built.count"
    assert [own_name(path) for path in paths] == ["group0.count", ".step", ""]


def test_a_tensor_that_ends_nan_is_the_one_with_the_largest_distance() -> None:
    verdict = near(moved(by=0.001, mean=(math.nan, 1.0, 100.0)))
    assert verdict.reason == "ends_apart"
    assert verdict.figures["end_distance_tensor"].value == "buffers mean"
