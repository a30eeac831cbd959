"""RMSNorm whose result is in FP8, in plain torch. T tokens, H hidden; the formulas are those of `rms_norm`.

FP8 values are computed from the fp32 result, so they are rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.fp8_rows.naive import quantize, to_fp8
from reference_impl.kernels.rms_norm import naive


def add_forward(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    """Return six tensors: total = x + residual, y = RMSNorm(total), y in FP8 as data [tokens, hidden] and scale f32
    [tokens], rstd f32 [tokens], and the Euclidean norm of each row of y before rounding, f32 [tokens].

    x, residual [tokens, hidden]; without residual, total is x. y in x's dtype is None unless ``keep`` is True.
    """
    total = x if residual is None else x + residual
    inner = total.float()
    rstd = torch.rsqrt(inner.square().mean(dim=1) + eps)
    y = inner * rstd[:, None] * gain
    return total, y.to(x.dtype) if keep else None, *to_fp8(y), rstd, y.norm(dim=1)


def backward_to_partials(
    grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four tensors: the result grad_x of `rms_norm.backward_to_partials`, grad_x in FP8 as data [tokens, hidden]
    and scale [tokens], and the Euclidean norm of each row of grad_x [tokens]. The function also writes partials."""
    grad_x = naive.backward_to_partials(grad_y, x, gain, rstd, partials, grad_residual)
    return grad_x, *quantize(grad_x), grad_x.float().norm(dim=1)
