"""Errors of a step against a reference's, by numbers that can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.evidence.arm_records import StepReading
from harness.execution.probes.single_steps import Evaluated, evaluated_errors, magnitudes, updated_errors
from harness.system.protocol import OptimizerState


def evaluated(gradients: dict[str, list[float]] | None = None, loss: float = 2.0, norm: float = 5.0) -> Evaluated:
    given = {"a": [3.0, 4.0], "b": [1.0], **(gradients or {})}
    return Evaluated(
        torch.tensor(loss),
        {"group": torch.tensor(norm)},
        {name: torch.tensor(values, dtype=torch.float64) for name, values in given.items()},
    )


def readings(found: list[StepReading]) -> dict[str, tuple[str, float, float | None]]:
    return {each.quantity: (each.tensor, each.error, each.yardstick) for each in found}


def test_loss_norms_and_gradients_are_relative_in_the_l2_norm() -> None:
    found = readings(
        evaluated_errors(evaluated({"a": [3.0, 4.5]}, 2.5, 5.5), evaluated(), evaluated({"b": [1.125]}, 2.25))
    )
    assert found == {"loss": ("loss", 0.25, 0.125), "norms": ("group", 0.1, 0.0), "gradients": ("a", 0.1, 0.125)}


@pytest.mark.parametrize("ours", [{"a": [3.0]}, {"a": [math.nan, 4.0]}, {"a": [math.inf, 4.0]}])
def test_an_incomparable_gradient_has_an_infinite_error(ours: dict[str, list[float]]) -> None:
    candidate = evaluated({"b": [9.0], **ours})
    tensor, error, _ = readings(evaluated_errors(candidate, evaluated(), evaluated()))["gradients"]
    assert (tensor, math.isfinite(error)) == ("a", False)


def test_a_missing_gradient_is_worse_than_any_error() -> None:
    candidate = Evaluated(torch.tensor(2.0), {"group": torch.tensor(5.0)}, {"b": torch.tensor([9.0])})
    assert readings(evaluated_errors(candidate, evaluated(), evaluated()))["gradients"][:2] == ("a", math.inf)


def test_a_gradient_missing_in_the_reference_has_an_infinite_error() -> None:
    partial = Evaluated(torch.tensor(2.0), {"group": torch.tensor(5.0)}, {"b": torch.tensor([1.0])})
    found = evaluated_errors(evaluated(), partial, partial)[-1]
    assert (found.tensors, found.tensor, found.error, found.yardstick) == (2, "a", math.inf, 0.0)


def test_a_quantity_absent_from_both_arms_counts_no_tensor() -> None:
    nothing = Evaluated(torch.tensor(2.0), {}, {})
    assert [each.tensors for each in evaluated_errors(nothing, nothing, nothing)] == [1, 0, 0]


@pytest.mark.parametrize("taken", ["parameters", "exp_avg", "exp_avg_sq"])
def test_a_tensor_missing_in_an_update_has_an_infinite_error(taken: str) -> None:
    whole = state([1.0], [1.0], [1.0])
    partial = replace(whole, **{taken: {}})
    for ours, expected in ((whole, partial), (partial, whole)):
        [found] = [each for each in updated_errors(ours, expected, expected) if each.quantity == taken]
        assert (found.tensors, found.tensor, found.error) == (1, "p", math.inf)


def test_only_a_value_of_zero_has_no_error_if_the_reference_is_zero() -> None:
    zero, small = evaluated({"a": [0.0, -0.0]}), evaluated({"a": [0.0, 1e-30]})
    assert readings(evaluated_errors(zero, zero, zero))["gradients"][1] == 0.0
    assert readings(evaluated_errors(small, zero, zero))["gradients"][:2] == ("a", math.inf)


def state(parameter: list[float], first: list[float], second: list[float]) -> OptimizerState:
    tensors = [{"p": torch.tensor(values)} for values in (parameter, first, second)]
    return OptimizerState(*tensors)


def test_an_update_error_is_relative_to_the_updates_magnitude() -> None:
    after, expected = state([1.5, 2.0], [1.0, 1.0], [1.0, 1.25]), state([1.0, 2.0], [1.0, 1.0], [1.0, 1.0])
    found = readings(updated_errors(after, expected, state([-2.0, 1.0], [1.0, 1.0], [0.5, 0.5])))
    assert found == {"exp_avg": ("p", 0.0, None), "exp_avg_sq": ("p", 0.5, None), "parameters": ("p", 0.25, None)}


def test_errors_of_values_below_the_smallest_normal_number_are_absolute() -> None:
    underflowed = updated_errors(state([0.0], [0.0], [0.0]), state([0.0], [0.0], [1e-44]), state([0.0], [0.0], [1e-44]))
    assert readings(underflowed)["exp_avg_sq"][1] == pytest.approx(1e-44 / torch.finfo(torch.float32).tiny, rel=0.1)


def test_magnitudes_add_up_absolute_values_in_an_update_that_subtracts() -> None:
    before = state([1.0, -2.0], [-3.0, 3.0], [4.0, 4.0])
    made, gradients = magnitudes(before, {"p": torch.tensor([-5.0, 5.0])})
    values: list[Tensor] = [made.parameters["p"], made.exp_avg["p"], made.exp_avg_sq["p"], gradients["p"]]
    assert [each.tolist() for each in values] == [[-1.0, -2.0], [3.0, 3.0], [4.0, 4.0], [5.0, 5.0]]


def test_an_empty_parameter_has_an_update_error_of_zero() -> None:
    empty = state([], [], [])
    assert {each.error for each in updated_errors(empty, empty, empty)} == {0.0}
