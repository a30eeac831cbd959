"""Planted faults in the arithmetic of backward products, fused clip and gain reduction. Importable without torch.

Each fault changes a `KernelTable`. The claim kind `kernel_match` compares the kernels of the changed table. In a
training run, changed entries replace the trainer's own kernels.
"""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.kernel_table import KernelTable, Product

TILE = 16
_TF32_DROPPED_BITS = 13  # number of fraction bits that TF32 lacks: fp32 has 23, TF32 has 10


def _kernels(reason: str) -> dict[str, Expectation]:
    return {"kernel_match": Expectation("FAIL", reason)}


def _kernels_and_gradients(reason: str) -> dict[str, Expectation]:
    return _kernels(reason) | {"gradient_match": Expectation("FAIL", "exceeds_tolerance")}


@fault(KERNELS, "operands of the backward products are rounded to TF32's 10 bits", _kernels("exceeds_tolerance"))
def tf32_backward(table: KernelTable) -> None:
    table.backward_a, table.backward_b = _in_tf32(table.backward_a), _in_tf32(table.backward_b)


def _in_tf32(product: Product) -> Product:
    def rounded(matrix: Tensor) -> Tensor:
        import torch

        half = 1 << (_TF32_DROPPED_BITS - 1)
        return ((matrix.view(torch.int32) + half) & -(1 << _TF32_DROPPED_BITS)).view(torch.float32)

    def multiply(left: Tensor, right: Tensor, out: Tensor, accumulate: bool) -> Tensor:
        import torch

        if left.dtype == right.dtype == torch.float32:
            left, right = rounded(left), rounded(right)
        return product(left, right, out, accumulate)

    return multiply


@fault(
    KERNELS,
    "the last rows of a product are not written if they do not fill a whole tile",
    _kernels("unwritten_elements"),
)
def unwritten_tile(table: KernelTable) -> None:
    table.backward_a, table.backward_b = _whole_tiles(table.backward_a), _whole_tiles(table.backward_b)


def _whole_tiles(product: Product) -> Product:
    def multiply(left: Tensor, right: Tensor, out: Tensor, accumulate: bool) -> Tensor:
        whole = out.shape[0] // TILE * TILE
        result = product(left, right, out.clone(), accumulate)
        out[:whole].copy_(result[:whole])
        return out

    return multiply


@fault(
    KERNELS,
    "the gain's partial sums are added in the order in which they arrive, as an atomic addition does",
    _kernels("not_repeatable") | {"repeatability": Expectation("FAIL", "differs")},
)
def atomic_gain_reduction(table: KernelTable) -> None:
    def in_order_of_arrival(partials: Tensor, grad_gains: Tensor) -> None:
        # Do not use the run's seed, because the order of the additions must differ from run to run.
        order = SystemRandom().sample(range(partials.shape[1]), partials.shape[1])
        total = partials[:, order[0]].clone()
        for arrived in order[1:]:
            total += partials[:, arrived]
        grad_gains.copy_(total.view_as(grad_gains))

    table.reduce_gains = in_order_of_arrival


@fault(KERNELS, "the clip divides by the norm's fourth power", _kernels_and_gradients("exceeds_tolerance"))
def clip_fourth_power(table: KernelTable) -> None:
    reduce = table.clip_scale_reduce

    def fourth_power(
        partials: Tensor, starts: Tensor, max_norm: float, eps: float, norms: Tensor, scales: Tensor
    ) -> None:
        reduce(partials, starts, max_norm, eps, norms, scales)
        scales.copy_((max_norm / (norms.pow(4) + eps)).clamp(max=1.0))

    table.clip_scale_reduce = fourth_power


@fault(KERNELS, "the clip divides by the norm without its epsilon", _kernels("exceeds_tolerance"))
def clip_without_epsilon(table: KernelTable) -> None:
    reduce = table.clip_scale_reduce

    def without(partials: Tensor, starts: Tensor, max_norm: float, _eps: float, norms: Tensor, scales: Tensor) -> None:
        reduce(partials, starts, max_norm, 0.0, norms, scales)

    table.clip_scale_reduce = without


@fault(
    KERNELS,
    "the norm leaves out the last partial sum, which is a whole tensor in a small model",
    _kernels_and_gradients("exceeds_tolerance"),
)
def clip_missing_tensor(table: KernelTable) -> None:
    partial_sums = table.squared_sum_partials

    def without_last(flat: Tensor, starts: Tensor, counts: Tensor, out: Tensor) -> Tensor:
        partial_sums(flat, starts, counts, out)
        out[-1:].zero_()
        return out

    table.squared_sum_partials = without_last


@fault(KERNELS, "every layer is scaled by the last layer's clip", _kernels_and_gradients("exceeds_tolerance"))
def clip_last_layer_scale(table: KernelTable) -> None:
    apply = table.scale_apply_

    def by_last(flat: Tensor, scales: Tensor, starts: Tensor, counts: Tensor, groups: Tensor) -> None:
        apply(flat, scales[-1:].expand_as(scales).contiguous(), starts, counts, groups)

    table.scale_apply_ = by_last
