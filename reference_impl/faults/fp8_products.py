"""Planted faults of the MLP's FP8 products with fused SwiGLU. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from reference_impl.kernel_table import KernelTable

_WRONG = {"kernel_match": Expectation("FAIL", "exceeds_tolerance")}
# Factors by which two faults multiply the limits. Limits give bounds of rows, and bounds give scales. A correct bound
# is about 400 times its row's largest value. e4m3's normal numbers span a factor of 2^15, its subnormal ones 2^3 more.
TOO_SMALL, TOO_LARGE = 2.0**-11, 2.0**12
STAGE = 128  # number of elements of the summed dimension in one stage


@fault(KERNELS, "a row's bound is a thousandth of the correct bound, so that large values saturate", _WRONG)
def fp8_bound_too_small(table: KernelTable) -> None:
    _with_limits(table, TOO_SMALL)


@fault(KERNELS, "a row's bound is thousands of times the correct bound, so that small values vanish", _WRONG)
def fp8_bound_too_large(table: KernelTable) -> None:
    _with_limits(table, TOO_LARGE)


def _with_limits(table: KernelTable, factor: float) -> None:
    """Multiply the argument `limit` of both kernels by `factor`. They compute the scales of results from `limit`."""
    up, down = table.fp8_up_swiglu, table.fp8_down_swiglu_backward
    table.fp8_up_swiglu = lambda *given: up(*given[:-1], given[-1] * factor)
    table.fp8_down_swiglu_backward = lambda *given: down(*given[:-1], given[-1] * factor)


@fault(KERNELS, "products in FP8 leave out the last terms of the summed dimension, which do not fill a stage", _WRONG)
def fp8_product_without_last_stage(table: KernelTable) -> None:
    up, down = table.fp8_up_swiglu, table.fp8_down_swiglu_backward
    table.fp8_up_swiglu = lambda x, *given: up(_whole_stages(x), *given)
    table.fp8_down_swiglu_backward = lambda grad, *given: down(_whole_stages(grad), *given)


def _whole_stages(left: Tensor) -> Tensor:
    """Return a copy of `left` [rows, terms] with zeros in its last stage, the last columns (1 to `STAGE`)."""
    import torch

    cut = left.view(torch.uint8).clone()
    cut[:, (left.shape[1] - 1) // STAGE * STAGE :] = 0
    return cut.view(left.dtype)


@fault(KERNELS, "a product in FP8 scales each column by the scale of the column before", _WRONG)
def fp8_product_scale_of_another_column(table: KernelTable) -> None:
    _with_scale_of_operand(table, 3)


@fault(KERNELS, "a product in FP8 scales each row by the scale of the row before", _WRONG)
def fp8_product_scale_of_another_row(table: KernelTable) -> None:
    _with_scale_of_operand(table, 1)


def _with_scale_of_operand(table: KernelTable, index: int) -> None:
    """Shift one operand's scales by one row, in both kernels. index: the position of the argument with these scales."""
    up, down = table.fp8_up_swiglu, table.fp8_down_swiglu_backward

    def other(own: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
        return lambda *given: own(*given[:index], given[index].roll(1).contiguous(), *given[index + 1 :])

    table.fp8_up_swiglu, table.fp8_down_swiglu_backward = other(up), other(down)


@fault(
    KERNELS,
    "the sums of a product in FP8 are kept in half precision, which is infinite beyond 65504, until they are scaled",
    {"kernel_match": Expectation("FAIL", "non_finite")},
)
def fp8_product_sums_in_fp16(table: KernelTable) -> None:
    up = table.fp8_up_swiglu

    def narrow(
        x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gate_up, data, scale = up(x, x_scale, weight, weight_scale, *rest)
        of_sums = x_scale[:, None] * weight_scale
        return ((gate_up.float() / of_sums).half().float() * of_sums).to(gate_up.dtype), data, scale

    table.fp8_up_swiglu = narrow


@fault(KERNELS, "the epilogue of a product in FP8 swaps gate and up", _WRONG)
def fp8_product_halves_exchanged(table: KernelTable) -> None:
    up, down = table.fp8_up_swiglu, table.fp8_down_swiglu_backward

    def up_exchanged(
        x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        half = weight.shape[0] // 2
        turned, scale = weight.view(torch.uint8).roll(half, dims=0).view(weight.dtype), weight_scale.roll(half)
        gate_up, _, _ = up(x, x_scale, weight, weight_scale, *rest)
        return gate_up, *up(x, x_scale, turned, scale, *rest)[1:]

    def down_exchanged(*given: Tensor) -> tuple[Tensor, Tensor]:
        gate_up = given[4].roll(given[4].shape[1] // 2, dims=1)
        return down(*given[:4], gate_up, *given[5:])

    import torch

    table.fp8_up_swiglu, table.fp8_down_swiglu_backward = up_exchanged, down_exchanged
