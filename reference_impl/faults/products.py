"""Planted faults of products that are fused with the operations around them. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.kernel_table import KernelTable

_WRONG = {"kernel_match": Expectation("FAIL", "exceeds_tolerance")}
STAGE = 64  # number of elements of the summed dimension in one stage


@fault(KERNELS, "products leave out the last terms of the summed dimension, which do not fill a stage", _WRONG)
def product_without_last_stage(table: KernelTable) -> None:
    up, down = table.up_swiglu, table.down_swiglu_backward
    add, gradient = table.add_product, table.input_gradient
    table.up_swiglu = lambda x, weight: up(_whole_stages(x), weight)
    table.down_swiglu_backward = lambda grad, *given: down(_whole_stages(grad), *given)
    table.add_product = lambda x, weight, residual: add(_whole_stages(x), weight, residual)
    table.input_gradient = lambda grad, *given: gradient(_whole_stages(grad), *given)


def _whole_stages(left: Tensor) -> Tensor:
    """Return a copy of `left` [rows, terms] with zeros in its last stage, the last columns (1 to `STAGE`)."""
    cut = left.clone()
    cut[:, (left.shape[1] - 1) // STAGE * STAGE :] = 0
    return cut


@fault(KERNELS, "a product's epilogue swaps gate and up", _WRONG)
def product_halves_exchanged(table: KernelTable) -> None:
    up, down = table.up_swiglu, table.down_swiglu_backward

    def up_exchanged(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        _, act = up(x, weight.roll(weight.shape[0] // 2, dims=0))
        return up(x, weight)[0], act

    def down_exchanged(grad: Tensor, weight: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        result = down(grad, weight, gate_up.roll(weight.shape[1], dims=1))
        return result if out is None else out.copy_(result)

    table.up_swiglu, table.down_swiglu_backward = up_exchanged, down_exchanged


@fault(KERNELS, "a product is not added to its residual", _WRONG)
def product_without_residual(table: KernelTable) -> None:
    add = table.add_product
    table.add_product = lambda x, weight, residual: add(x, weight, residual * 0)


@fault(KERNELS, "the gradient of a projection's input leaves out its adapter", _WRONG)
def gradient_without_adapter(table: KernelTable) -> None:
    gradient = table.input_gradient
    table.input_gradient = lambda grad, weight, extra, weight_extra: gradient(grad, weight, extra * 0, weight_extra)
