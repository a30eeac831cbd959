"""Planted faults of norms, SwiGLU, cross-entropy and NF4 dequantization. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from reference_impl.kernel_table import KernelTable

_WRONG = {"kernel_match": Expectation("FAIL", "exceeds_tolerance")}
_NOT_FINITE = {"kernel_match": Expectation("FAIL", "non_finite")}

OTHER_EPSILON = 1e-5
WRONG_CODE, WRONG_BY = 5, 1e-5  # index of an NF4 code, and the error that the fault adds to the code's value
NF4_BLOCK = 64
IGNORED = -100


@fault(KERNELS, "norms leave out their epsilon, so that a row of zeros becomes NaN", _NOT_FINITE)
def norm_without_epsilon(table: KernelTable) -> None:
    _with_epsilon(table, 0.0)


@fault(KERNELS, "norms use an epsilon of 1e-5 instead of the model's", _WRONG)
def norm_other_epsilon(table: KernelTable) -> None:
    _with_epsilon(table, OTHER_EPSILON)


def _with_epsilon(table: KernelTable, eps: float) -> None:
    forward, add_forward = table.rms_norm_forward, table.rms_norm_add_forward
    table.rms_norm_forward = lambda x, gain, _eps: forward(x, gain, eps)
    table.rms_norm_add_forward = lambda x, residual, gain, _eps: add_forward(x, residual, gain, eps)


@fault(KERNELS, "the addition that is fused with a norm is left out", _WRONG)
def norm_without_addition(table: KernelTable) -> None:
    add_forward = table.rms_norm_add_forward
    table.rms_norm_add_forward = lambda x, residual, gain, eps: add_forward(x, residual * 0, gain, eps)


@fault(KERNELS, "a norm's backward leaves out the gradient of the residual path next to the norm", _WRONG)
def norm_backward_without_residual(table: KernelTable) -> None:
    backward = table.backward_to_partials

    def without(
        grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
    ) -> Tensor:
        return backward(grad_y, x, gain, rstd, partials, None if grad_residual is None else grad_residual * 0)

    table.backward_to_partials = without


@fault(KERNELS, "a norm's backward uses the scale of the previous row", _WRONG)
def norm_backward_other_row(table: KernelTable) -> None:
    backward = table.backward_to_partials

    def other_row(
        grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
    ) -> Tensor:
        return backward(grad_y, x, gain, rstd.roll(1), partials, grad_residual)

    table.backward_to_partials = other_row


@fault(KERNELS, "SwiGLU's gate and up are swapped", _WRONG)
def swiglu_halves_exchanged(table: KernelTable) -> None:
    forward = table.swiglu_forward
    table.swiglu_forward = lambda gate_up: forward(gate_up.roll(gate_up.shape[1] // 2, dims=1))


@fault(KERNELS, "SwiGLU's derivative is only the sigmoid, without the term with the sigmoid's slope", _WRONG)
def swiglu_derivative(table: KernelTable) -> None:
    backward = table.swiglu_backward

    def without_slope(grad_act: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        grad_gate = grad_act * up * gate.sigmoid()
        result = backward(grad_act, gate_up, out)
        result[:, : gate.shape[1]] = grad_gate
        return result

    table.swiglu_backward = without_slope


@fault(KERNELS, "cross-entropy ignores the last token", _WRONG)
def loss_without_last_token(table: KernelTable) -> None:
    def without_last(targets: Tensor) -> Tensor:
        cut = targets.clone()
        cut[-1] = IGNORED
        return cut

    _with_targets(table, without_last)


@fault(KERNELS, "cross-entropy counts ignored tokens as the vocabulary's first", _WRONG)
def loss_of_ignored_tokens(table: KernelTable) -> None:
    _with_targets(table, lambda targets: targets.clamp(min=0))


def _with_targets(table: KernelTable, change: Callable[[Tensor], Tensor]) -> None:
    cross_entropy_, from_statistics_ = table.cross_entropy_forward_backward_, table.cross_entropy_from_statistics_
    table.cross_entropy_forward_backward_ = lambda logits, targets, scale: cross_entropy_(
        logits, change(targets), scale
    )
    table.cross_entropy_from_statistics_ = lambda logits, maxima, totals, targets, scale: from_statistics_(
        logits, maxima, totals, change(targets), scale
    )


@fault(KERNELS, "cross-entropy's exponentials are taken without subtracting the row's maximum", _NOT_FINITE)
def loss_without_maximum(table: KernelTable) -> None:
    def without_(logits: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
        import torch

        powers = logits.float().exp()
        total, valid = powers.sum(dim=1), targets != IGNORED
        index = torch.where(valid, targets, 0)[:, None]
        losses = total.log() - logits.float().gather(1, index).squeeze(1)
        gradient = (powers / total[:, None]).scatter_add(1, index, -torch.ones_like(total)[:, None])
        logits.copy_(torch.where(valid[:, None], gradient * scale, 0.0))
        return torch.where(valid, losses, 0.0)

    table.cross_entropy_forward_backward_ = without_


@fault(KERNELS, "one of the 16 NF4 values is off in its fifth digit", _WRONG)
def nf4_value_off(table: KernelTable) -> None:
    dequantize = table.nf4_dequantize

    def one_off(
        codes: Tensor, absmax: Tensor, rows: int, cols: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        import torch

        weight = dequantize(codes, absmax, rows, cols, dtype, out)
        nibbles = torch.stack((codes >> 4, codes & 15), dim=1).view(rows, cols)
        return weight.copy_(torch.where(nibbles == WRONG_CODE, weight.float() * (1 + WRONG_BY), weight.float()))

    table.nf4_dequantize = one_off


@fault(KERNELS, "the last block of a matrix uses the scale of the previous block", _WRONG)
def nf4_neighbours_scale(table: KernelTable) -> None:
    dequantize = table.nf4_dequantize

    def by_neighbour(
        codes: Tensor, absmax: Tensor, rows: int, cols: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        scales = absmax.clone()
        scales[-1:] = scales[-2:-1] if len(scales) > 1 else scales
        return dequantize(codes, scales, rows, cols, dtype, out)

    table.nf4_dequantize = by_neighbour


@fault(KERNELS, "the first element of a byte is read from the low half of the byte", _WRONG)
def nf4_halves_exchanged(table: KernelTable) -> None:
    dequantize = table.nf4_dequantize

    def exchanged(
        codes: Tensor, absmax: Tensor, rows: int, cols: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        return dequantize((codes << 4) | (codes >> 4), absmax, rows, cols, dtype, out)

    table.nf4_dequantize = exchanged
