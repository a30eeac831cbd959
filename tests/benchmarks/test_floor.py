"""The floor runs the products of the step, all of them and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from benchmarks.floor import (
    ROUNDS,
    GemmFloor,
    floating_point_operations,
    fused_projection_shapes,
    interleaved,
    projection_shapes,
    step_and_floors,
)
from benchmarks.measure import MOST_STEPS_A_ROUND
from reference_impl.checkpoint import parameter_count
from reference_impl.config import MODEL_PRESETS, ModelConfig, TrainConfig

SMALL = ModelConfig(
    hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=48
)


def test_the_operation_count_follows_from_the_number_of_parameters() -> None:
    """A parameter of a matrix, tied head included, takes part in two products (forward, backward) of two operations."""
    config = MODEL_PRESETS["qwen2-1.5b"]
    vectors = config.num_layers * (config.qkv_dim + 2 * config.hidden_size) + config.hidden_size
    assert floating_point_operations(config, 3) == 4 * 3 * (parameter_count(config) - vectors)


def test_a_step_multiplies_forward_and_backward() -> None:
    floor = GemmFloor(SMALL, 5, torch.device("cpu"))
    head = floor._products[-1]
    floor.step(0)
    torch.testing.assert_close(head.output, head.value @ head.weight.t())
    torch.testing.assert_close(floor._products[0].grad_value, floor._products[0].output @ floor._products[0].weight)
    assert len(floor._products) == 7 * SMALL.num_layers + 1


def test_a_gemm_floor_without_cuda_reports_that_nothing_was_captured() -> None:
    """A floor is the time of the step's matrix products alone, below which no step can be."""
    assert not GemmFloor(SMALL, 2, torch.device("cpu")).captured


def test_the_fused_floor_multiplies_as_much_in_fewer_products() -> None:
    """A floor is the time of the step's matrix products alone. The fused floor joins several products into one."""
    for config in (SMALL, MODEL_PRESETS["qwen2-1.5b"]):
        plain, fused = projection_shapes(config), fused_projection_shapes(config)
        assert sum(rows * cols for rows, cols in fused) == sum(rows * cols for rows, cols in plain)
    products = GemmFloor(SMALL, 5, torch.device("cpu"), fused=True)._products
    assert len(products) == 4 * SMALL.num_layers + 1


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the clock of measurements, which nothing else moves."""
    now = [0.0]
    monkeypatch.setattr("benchmarks.measure.time", SimpleNamespace(perf_counter=lambda: now[0]))
    return lambda seconds: now.append(now.pop() + seconds)


def test_interleaved_arms_take_turns_and_have_equal_numbers_of_timed_steps(moved: Callable[[float], None]) -> None:
    order: list[str] = []

    def arm(name: str) -> Callable[[int], None]:
        def step(_index: int) -> None:
            order.append(name)
            moved(0.001)

        return step

    found = interleaved({name: arm(name) for name in ("a", "b")}, torch.device("cpu"))
    turns = [name for place, name in enumerate(order) if place == 0 or order[place - 1] != name]
    assert turns == ["a", "b"] * (1 + ROUNDS)  # the first turn says how long a step is
    singles = ROUNDS * MOST_STEPS_A_ROUND
    assert {name: len(arm.milliseconds) for name, arm in found.items()} == dict.fromkeys("ab", singles)
    assert [arm.described() for arm in found.values()] == [
        {"median_ms": arm.median_ms, "clock_mhz": None, "single_steps": singles} for arm in found.values()
    ]


def test_the_slowest_arm_determines_the_number_of_timed_steps(moved: Callable[[float], None]) -> None:
    arms = {"slow": lambda _index: moved(0.09), "quick": lambda _index: moved(0.001)}
    found = interleaved(arms, torch.device("cpu"))
    assert {len(arm.milliseconds) for arm in found.values()} == {6 * ROUNDS}  # six and six take 1.2 s


@pytest.mark.slow
def test_the_step_is_reported_with_both_floors() -> None:
    """A floor is the time of the step's matrix products alone, with separate or with joined products."""
    model = replace(SMALL, vocab_size=256, intermediate_size=128)  # in FP8 rows are of whole blocks
    found = step_and_floors(TrainConfig(model=model, batch_size=2, seq_len=8, device="cpu"))
    described = found.described()
    assert min(found.step.median_ms, found.floor.median_ms) > 0
    assert described["times_floor"] == found.step.median_ms / found.floor.median_ms
    assert described["peak_gib"] is None
    assert found.fp8_step is not None
    assert described["fp8_times_floor"] == found.fp8_step.median_ms / found.floor.median_ms
