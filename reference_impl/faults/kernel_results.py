"""Planted faults that change the range or the last digits of every kernel's results. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.system.protocol import Expectation
from reference_impl.faults.attention_kernels import COARSE
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.config import TrainConfig
    from reference_impl.kernel_table import KernelTable
    from reference_impl.optimizer import FlatAdamW

RETURNING = (
    "attention_forward",
    "attention_backward",
    "rms_norm_forward",
    "rms_norm_add_forward",
    "backward_to_partials",
    "swiglu_forward",
    "swiglu_backward",
    "up_swiglu",
    "down_swiglu_backward",
    "add_product",
    "input_gradient",
    "cross_entropy_forward_backward_",
    "cross_entropy_from_statistics_",
    "head_logits",
    "nf4_dequantize",
)
"""Names of the functions in a `KernelTable` that return their results. All other functions write their results into
arguments."""


def _change_results(table: KernelTable, change_: Callable[[Tensor], object]) -> None:
    """Wrap the table's entries so that each floating-point result is changed in place by `change_`."""
    for name in RETURNING:
        setattr(table, name, _changed(getattr(table, name), change_))
    rotate_, adamw, lora_gradients = table.rope_add_rotate_, table.adamw, table.lora_gradients

    def rotated_(qkv: Tensor, *given: Any) -> None:
        rotate_(qkv, *given)
        change_(qkv)

    def gradients(*given: Tensor) -> None:
        lora_gradients(*given)
        for result in given[-3:]:
            change_(result)

    def optimizer_of(parameters: Tensor, config: TrainConfig) -> FlatAdamW:
        optimizer = adamw(parameters, config)
        update_ = optimizer.update_

        def updated_(parameters: Tensor, gradient: Tensor, norms: Tensor) -> None:
            update_(parameters, gradient, norms)
            for result in (parameters, optimizer.exp_avg, optimizer.exp_avg_sq):
                change_(result)

        optimizer.update_ = updated_  # type: ignore[method-assign]
        return optimizer

    table.rope_add_rotate_ = rotated_
    table.lora_gradients = gradients
    table.adamw = optimizer_of


def _changed(kernel: Callable[..., Any], change_: Callable[[Tensor], object]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        result = kernel(*arguments, **named)
        for tensor in result if isinstance(result, tuple) else (result,):
            change_(tensor)
        return result

    return call


@fault(
    KERNELS, "the results of a step's kernels pass through fp16", {"kernel_match": Expectation("FAIL", "non_finite")}
)
def results_in_fp16(table: KernelTable) -> None:
    _change_results(table, lambda result: result.copy_(result.half()))


@fault(
    KERNELS,
    "the results of a step's kernels are wrong in their last seven bits",
    {"kernel_match": Expectation("FAIL", "exceeds_peer")},
)
def coarse_results(table: KernelTable) -> None:
    _change_results(table, lambda result: result.mul_(1 + COARSE))


@fault(
    KERNELS,
    "the results of a step's kernels are wrong in the last three bits of bfloat16's precision",
    {"kernel_match": Expectation("FAIL", "exceeds_tolerance")},
)
def coarse_bfloat16_results(table: KernelTable) -> None:
    """Change only bfloat16 results. The fault `coarse_results` cannot change them, because its relative change is
    smaller than bfloat16 can represent."""
    _change_results(table, _coarse_bfloat16)


def _coarse_bfloat16(result: Tensor) -> None:
    import torch

    if result.dtype == torch.bfloat16:
        result.mul_(1 + 2.0**-5)
