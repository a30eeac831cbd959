"""RMSNorm whose result is in FP8, in plain torch: T tokens, H hidden; the formulas are those of `rms_norm`.

Rounded once: FP8 is made from the fp32 result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.fp8_rows.naive import quantize, to_fp8
from reference_impl.kernels.rms_norm import naive


def add_forward(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    """x [T, H] (+ residual [T, H]) -> their sum, its norm y in x's dtype if ``keep``, y as FP8 data and scale, rstd.

    The last result is the Euclidean norm f32 [T] of y's rows before they are rounded.
    """
    total = x if residual is None else x + residual
    inner = total.float()
    rstd = torch.rsqrt(inner.square().mean(dim=1) + eps)
    y = inner * rstd[:, None] * gain
    return total, y.to(x.dtype) if keep else None, *to_fp8(y), rstd, y.norm(dim=1)


def backward_to_partials(
    grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`rms_norm.backward_to_partials` -> grad_x [T, H] as it is there, as FP8 data and scale, and its rows' norms."""
    grad_x = naive.backward_to_partials(grad_y, x, gain, rstd, partials, grad_residual)
    return grad_x, *quantize(grad_x), grad_x.float().norm(dim=1)
