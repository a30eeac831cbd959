"""Faults of operators that all arms share: each changes the step by what its name says, and nobody else's."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.contract.schema import Needs
from harness.system.protocol import Arm, Workload
from reference_impl import ops
from reference_impl.faults import FAULTS, operators
from reference_impl.system import QLoRARun, QLoRASystem

# Of seed 0 the first windows of 16 bytes are rules of one repeated character, over which attention is the same.
WORKLOAD = Workload(model="tiny", batch_size=1, seq_len=16, steps=3, seed=1, needs=Needs(device="cpu"))
OWN = [name for name, fault in FAULTS.items() if fault.change.__module__ == operators.__name__]
# The relative change of any gradient, in float32, whose rounding makes 1e-6. LoRA's scale reaches a gain only through
# the small products of LoRA, and one of 16 tokens may be one that the model is sure of.
LEAST = {
    "wrong_norm_epsilon": 0.05,
    "wrong_nf4_table": 0.02,
    "logit_gradients_in_fp8": 0.02,
    "wrong_lora_scale": 0.01,
    "ignored_last_token": 2e-4,
}


def opened(fault: str | None) -> QLoRARun:
    return QLoRASystem().open(WORKLOAD, Arm(), fault=fault)


@cache
def gradients(fault: str | None) -> dict[str, Tensor]:
    """Of the first step after an update, at which none is zero by construction, from equal parameters."""
    with opened(None) as right:
        right.step(0)
        start = {name: tensor.clone() for name, tensor in right.parameters().items()}
    with opened(fault) as run:
        for name, tensor in run.parameters().items():
            tensor.copy_(start[name])
        run.trainer.prepare(1)
        run.trainer.clip.apply_ = lambda gradient: None  # type: ignore[method-assign]  # noqa: ARG005
        run.trainer.body()
        return {name: tensor.clone() for name, tensor in run.gradients().items()}


def changes(fault: str) -> dict[str, float]:
    """By tensor how far its gradient is from the right one, relative to that one."""
    right, wrong = gradients(None), gradients(fault)
    return {name: float((wrong[name] - each).norm() / each.norm()) for name, each in right.items()}


@pytest.mark.parametrize("fault", [name for name in OWN if name != "lora_product_in_fp8"])
def test_an_operator_fault_changes_every_gradient_beyond_rounding(fault: str) -> None:
    least = LEAST.get(fault, 0.1)
    assert {name: change for name, change in changes(fault).items() if not change > least} == {}


def test_the_lora_product_fault_changes_only_the_gradients_of_lora_b() -> None:
    found = changes("lora_product_in_fp8")
    assert all(change > 0.01 for name, change in found.items() if "lora_b" in name)
    assert {change for name, change in found.items() if "lora_b" not in name} == {0.0}


def test_gradients_of_swapped_projections_are_right_for_the_swapped_model() -> None:
    """Gate and up are swapped in the forward and in the backward pass, so the step is a correct step of a different
    model.
    """
    both = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    right = torch.nn.functional.silu(both[:, 4:]) * both[:, :4]
    [expected] = torch.autograd.grad(right.sum(), both)
    seen: list[Tensor] = []
    with opened("swapped_gate_and_up") as run:
        forward = run.trainer.model.forward

        def within_the_step(*given: Any, **named: Any) -> Any:
            value = both.detach()
            seen.extend((ops.swiglu_forward(value), ops.swiglu_backward(torch.ones(5, 4, dtype=value.dtype), value)))
            return forward(*given, **named)

        run.trainer.model.forward = within_the_step  # type: ignore[method-assign]
        run.step(0)
    assert torch.allclose(seen[0], right.detach())
    assert torch.allclose(seen[1], expected)


@pytest.mark.parametrize("fault", OWN)
def test_an_operator_fault_changes_operators_only_in_its_own_run(fault: str) -> None:
    before = dict(vars(ops))
    with opened(fault) as run:
        assert dict(vars(ops)) == before
        run.step(0)
        assert dict(vars(ops)) == before


def test_operators_are_restored_after_a_failed_step() -> None:
    before = dict(vars(ops))
    with opened("ignored_last_token") as run:
        run.trainer.clip.apply_ = None  # type: ignore[method-assign, assignment]
        with pytest.raises(TypeError):
            run.step(0)
        assert dict(vars(ops)) == before
