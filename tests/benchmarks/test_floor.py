"""The floor runs the products of the step, all of them and no others."""

from __future__ import annotations

import torch

from benchmarks.floor import GemmFloor, floating_point_operations
from reference_impl.checkpoint import parameter_count
from reference_impl.config import MODEL_PRESETS, ModelConfig

SMALL = ModelConfig(
    hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=48
)


def test_operations_follow_from_the_parameters() -> None:
    """Forward and backward are two products of two operations for each parameter of a matrix, tied head included."""
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


def test_without_cuda_it_says_that_nothing_was_captured() -> None:
    assert not GemmFloor(SMALL, 2, torch.device("cpu")).captured
