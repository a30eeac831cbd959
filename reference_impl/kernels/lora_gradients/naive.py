"""The gradients of a decoder block's LoRA factors and of its norms' gains, in plain torch.

T tokens, H hidden, O outputs of qkv, R = 2r: the ranks of q and of v together, G norms, P partial sums for a gain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.rms_norm import naive as rms_norm


def write(
    grad_qkv: Tensor,
    low_rank: Tensor,
    grad_low_rank: Tensor,
    rstd: Tensor,
    residual: Tensor,
    gain_partials: Tensor,
    grad_b: Tensor,
    grad_a: Tensor,
    grad_norms: Tensor,
) -> None:
    """Write grad_b = grad_qkv^T @ low_rank, grad_a = (grad_low_rank * rstd)^T @ residual, and grad_norms.

    grad_b [O, R], grad_a [R, H], grad_norms [G, H]; grad_qkv [T, O]; low_rank, grad_low_rank [T, R]; rstd [T]; residual
    [T, H]. grad_norms is the sum of gain_partials [G, P, H] over P. The product with rstd is rounded to the dtype of
    grad_low_rank. Sums are accumulated in the dtype of the results.
    """
    rms_norm.reduce_gains(gain_partials, grad_norms)
    _write_product(grad_b, grad_qkv.t(), low_rank)
    scaled = torch.mul(grad_low_rank, rstd[:, None], out=torch.empty_like(grad_low_rank))
    _write_product(grad_a, scaled.t(), residual)


def _write_product(out: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == out.dtype:
        torch.mm(left, right, out=out)
    else:
        out.copy_(left.to(out.dtype) @ right.to(out.dtype))
