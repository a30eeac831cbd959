"""The operators of a captured step and of the plain one: other kernels are seen and named."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from harness.execution.watchers.capture_attempts import CaptureAttempts
from harness.system.replay.operations import OperatorWatch
from harness.system.replay.traced import TracedStep


def attention(mask: Tensor | None) -> set[str]:
    query = torch.ones(1, 1, 4, 8)
    with OperatorWatch() as watch, torch.no_grad():
        scaled_dot_product_attention(query, query, query, attn_mask=mask)
    names: set[str] = watch.names
    return names


def test_an_attention_kernel_with_a_mask_is_named_differently() -> None:
    flash = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert attention(None) == {flash}
    assert f"{flash} with attn_mask" in attention(torch.zeros(4, 4))


def test_operators_that_only_move_memory_are_not_recorded() -> None:
    with OperatorWatch() as watch:
        torch.zeros(2, 3).t().clone().reshape(6).copy_(torch.ones(6))
    assert watch.names == set()


def test_a_recording_has_the_operators_that_the_step_ran() -> None:
    value = torch.ones(2)

    def body() -> Tensor:
        return (value.sin() + 1).sum()

    with OperatorWatch() as watch:
        body()
    step = TracedStep(body, lambda: {"value": value})
    with CaptureAttempts() as attempts:
        step.record()
    assert attempts.operators == watch.names == {"aten.sin", "aten.add", "aten.sum"}
