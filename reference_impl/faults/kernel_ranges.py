"""Planted faults in kernels: values are kept in fp16, or a sum's last terms are left out. Importable without torch.

Values beyond 65504 become infinite in fp16, and values near 1 are only rounded. A claim therefore finds the faults with
fp16 only if it compares kernels on inputs of size 1e5 (its `magnitudes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.kernels import TILE
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.kernel_table import KernelTable, Product


def _kernels(reason: str) -> dict[str, Expectation]:
    return {"kernel_match": Expectation("FAIL", reason)}


@fault(KERNELS, "operands of the backward products are cast to fp16 without scaling", _kernels("non_finite"))
def unscaled_fp16(table: KernelTable) -> None:
    table.backward_a, table.backward_b = _through_fp16(table.backward_a), _through_fp16(table.backward_b)


def _through_fp16(product: Product) -> Product:
    def multiply(left: Tensor, right: Tensor, out: Tensor, accumulate: bool) -> Tensor:
        return product(left.half().to(left.dtype), right.half().to(right.dtype), out, accumulate)

    return multiply


@fault(
    KERNELS,
    "terms of a product beyond the last whole tile of the reduced dimension are left out",
    _kernels("exceeds_tolerance") | {"C-TILE-BWD-TRAJECTORY": Expectation("FAIL", "exceeds_tolerance")},
)
def missing_terms(table: KernelTable) -> None:
    table.backward_a = _whole_sums(table.backward_a, axis=1)
    table.backward_b = _whole_sums(table.backward_b, axis=0)


def _whole_sums(product: Product, axis: int) -> Product:
    def multiply(left: Tensor, right: Tensor, out: Tensor, accumulate: bool) -> Tensor:
        length = left.shape[axis]
        whole = length // TILE * TILE
        cut = left.clone()
        cut.narrow(axis, whole, length - whole).zero_()
        return product(cut, right, out, accumulate)

    return multiply


@fault(KERNELS, "the clip keeps its partial sums of squares in fp16", _kernels("non_finite"))
def clip_squares_in_fp16(table: KernelTable) -> None:
    partial_sums = table.squared_sum_partials

    def in_fp16(flat: Tensor, starts: Tensor, counts: Tensor, out: Tensor) -> Tensor:
        partial_sums(flat, starts, counts, out)
        return out.copy_(out.half())

    table.squared_sum_partials = in_fp16


@fault(KERNELS, "the gain's partial sums are kept in fp16", _kernels("non_finite"))
def gain_partials_in_fp16(table: KernelTable) -> None:
    reduce = table.reduce_gains

    def in_fp16(partials: Tensor, grad_gains: Tensor) -> None:
        reduce(partials.half().to(partials.dtype), grad_gains)

    table.reduce_gains = in_fp16


@fault(KERNELS, "the gain's last partial sum is left out", _kernels("exceeds_tolerance"))
def missing_gain_partial(table: KernelTable) -> None:
    reduce = table.reduce_gains

    def without_last(partials: Tensor, grad_gains: Tensor) -> None:
        cut = partials.clone()
        cut[:, -1].zero_()
        reduce(cut, grad_gains)

    table.reduce_gains = without_last
