"""How otherwise an execution moved tensors than another: the difference of two movements, not of two ends."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from harness.evidence.arm_records import MovedApart
from harness.execution.watchers.state_watch import SAMPLED, Moves, copied, median_moved, movable, moved, sampled

WEIGHT, MEAN, COUNT = "parameters weight", "buffers mean", "buffers count"


def tensors(**values: list[float]) -> dict[str, Tensor]:
    return {{"weight": WEIGHT, "mean": MEAN}[name]: torch.tensor(each) for name, each in values.items()}


def apart(start: dict[str, Tensor], end: dict[str, Tensor], other: tuple[dict[str, Tensor], ...]) -> MovedApart:
    moves = Moves()
    moves.keep(moved(*other), "plain")
    [found] = moves.apart(moved(start, end), {*end, COUNT})
    assert found.arm == "plain"
    return found


def test_a_nudge_of_the_start_does_not_count_as_movement_of_the_training() -> None:
    """A nudge changes the start slightly. Here the arms end 0.5 apart, and 0.25 of this existed at the start."""
    plain = tensors(weight=[1.0, 2.0]), tensors(weight=[1.0, 5.0])
    found = apart(tensors(weight=[1.0, 2.25]), tensors(weight=[1.0, 5.5]), plain)
    assert found.tensors[WEIGHT] == pytest.approx((0.25, 3.0, math.hypot(1, 5.5)))
    assert found.uncompared == [COUNT]


def test_the_moved_distance_is_the_norm_over_all_elements() -> None:
    plain = tensors(weight=[0.0, 0.0]), tensors(weight=[6.0, 8.0])
    found = apart(tensors(weight=[0.0, 0.0]), tensors(weight=[3.0, 4.0]), plain)
    assert found.tensors == {WEIGHT: (5.0, 10.0, 5.0)}


def test_a_tensor_created_in_the_first_step_counts_as_moved_from_zero() -> None:
    plain = tensors(), tensors(mean=[3.0])
    assert apart(tensors(), tensors(mean=[4.0]), plain).tensors == {MEAN: (1.0, 3.0, 4.0)}


def test_a_tensor_that_starts_infinite_counts_as_moved_from_zero() -> None:
    """A smallest value so far starts as infinity. Measured from infinity, no two ends would differ.

    An element that stays infinite did not move.
    """
    start = {"mean": [math.inf, -math.inf]}
    plain = tensors(**start), tensors(mean=[3.0, -math.inf])
    assert apart(tensors(**start), tensors(mean=[4.0, -math.inf]), plain).tensors == {MEAN: (1.0, 3.0, math.inf)}


def test_a_log_element_that_stays_nan_counts_as_not_moved() -> None:
    """A log starts as NaN and is filled from the front. An element that becomes NaN moved by an unknown distance."""
    start = {"mean": [math.nan, math.nan, 1.0]}
    plain = tensors(**start), tensors(mean=[3.0, math.nan, 1.0])
    apart_by, moved_by, _ = apart(tensors(**start), tensors(mean=[4.0, math.nan, 1.0]), plain).tensors[MEAN]
    assert (apart_by, moved_by) == (1.0, 3.0)
    lost, _, _ = apart(tensors(**start), tensors(mean=[3.0, math.nan, math.nan]), plain).tensors[MEAN]
    assert math.isnan(lost)


def test_tensors_with_different_names_or_shapes_are_listed_as_not_compared() -> None:
    plain = tensors(weight=[0.0]), tensors(weight=[1.0])
    found = apart(tensors(weight=[0.0, 0.0]), tensors(weight=[1.0, 1.0], mean=[1.0]), plain)
    assert (found.tensors, found.uncompared) == ({}, [COUNT, MEAN, WEIGHT])


def test_generators_and_batchnorm_counts_are_left_out_of_moved_distances() -> None:
    batches = {"1.num_batches_tracked": torch.ones(1, dtype=torch.int64)}
    state = {
        "parameters": {"weight": torch.ones(1)},
        "buffers": {"mean": torch.ones(1), "count": torch.ones(1, dtype=torch.int64), **batches},
        "optimizer": {"exp_avg": torch.ones(1)},
        "generators": {"cpu": torch.ones(1)},
        "tensors": {"wave": torch.ones(1, dtype=torch.complex64)},
    }
    assert sorted(movable(state)) == [COUNT, MEAN, "optimizer exp_avg", WEIGHT, "tensors wave"]


def test_integer_and_boolean_tensors_have_a_moved_distance() -> None:
    plain = {COUNT: torch.tensor([0, 0])}, {COUNT: torch.tensor([6, 8])}
    assert apart({COUNT: torch.tensor([0, 0])}, {COUNT: torch.tensor([12, 16])}, plain).tensors == {
        COUNT: (10.0, 10.0, 20.0)
    }
    flags = {COUNT: torch.tensor([False])}, {COUNT: torch.tensor([True])}
    assert apart(flags[0], flags[0], flags).tensors == {COUNT: (1.0, 1.0, 0.0)}


def test_the_copied_start_state_does_not_change_with_the_weights() -> None:
    weight = torch.ones(1)
    kept = copied({WEIGHT: weight})
    weight.add_(1)
    assert kept[WEIGHT].tolist() == [1.0]


def test_equal_infinite_elements_count_as_unmoved_and_equal() -> None:
    mask = tensors(mean=[-math.inf, 1.0])
    assert apart(mask, mask, (mask, mask)).tensors == {MEAN: (0.0, 0.0, math.inf)}
    assert apart({}, mask, ({}, mask)).tensors == {MEAN: (0.0, math.inf, math.inf)}


def test_the_end_state_of_an_arms_first_execution_is_kept_and_that_of_a_failed_arm_dropped() -> None:
    moves = Moves()
    for value in (1.0, 2.0):
        moves.keep(moved({}, tensors(weight=[value])), "plain")
    assert moves.kept("plain")[WEIGHT].tolist() == [1.0]
    moves.forget("plain")
    assert moves.apart(moved({}, tensors(weight=[1.0])), {WEIGHT}) == []


@pytest.mark.parametrize(
    ("ends", "median"),
    [
        ({"a": 1.01, "b": 1.02, "c": 1.03}, 0.02),
        ({"a": 1.01, "b": 1.02, "c": 1.02, "d": 1.03}, 0.02),
        ({"a": 1.0, "zeros": 1.0}, 0.0),
        ({"zeros": 1.0}, None),
    ],
)
def test_the_median_relative_move_of_tensors_ignores_zero_tensors(ends: dict[str, float], median: float | None) -> None:
    start = {name: torch.full((3, 2), float(name != "zeros")) for name in ends}
    before = sampled(start)
    for name, end in ends.items():
        start[name].fill_(end)
    assert median_moved(before, sampled(start)) == (None if median is None else pytest.approx(median, rel=1e-4))


def test_a_large_tensor_is_sampled_from_its_first_to_its_last_element() -> None:
    assert sampled({"counts": torch.arange(10 * SAMPLED)}) == {}
    [sample] = sampled({"weight": torch.arange(10 * SAMPLED, dtype=torch.float32)}).values()
    assert (len(sample), float(sample[0]), float(sample[-1])) == (SAMPLED, 0.0, 10 * (SAMPLED - 1))
