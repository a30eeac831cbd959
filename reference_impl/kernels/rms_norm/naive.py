"""RMSNorm in plain torch: y = x * rsqrt(mean(x^2) + eps) * gain.

y is computed in float32 (in float64 for float64 x), and rounded once to x's dtype. P: number of a gain's partial sums.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _inner_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def forward(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return y [tokens, hidden] and rstd = rsqrt(mean(x^2) + eps) [tokens], for x [tokens, hidden], gain [hidden]."""
    inner = x.to(_inner_dtype(x))
    rstd = torch.rsqrt(inner.square().mean(dim=1) + eps)
    return (inner * rstd[:, None] * gain).to(x.dtype), rstd


def add_forward(x: Tensor, residual: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return total = x + residual and y = RMSNorm(total), both [tokens, hidden] as x, and rstd [tokens]."""
    total = x + residual
    y, rstd = forward(total, gain, eps)
    return total, y, rstd


def backward(
    grad_y: Tensor,
    x: Tensor,
    gain: Tensor,
    rstd: Tensor,
    grad_residual: Tensor | None = None,
    grad_gain: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return grad_x [tokens, hidden] and the gain's gradient [hidden], which is written to ``grad_gain`` if given.

    With n = x * rstd: grad_x = rstd * (grad_y * gain - n * mean(grad_y * gain * n)) (+ grad_residual), grad_gain = sum
    over tokens of grad_y * n.
    """
    inner = _inner_dtype(x)
    normed = x.to(inner) * rstd[:, None]
    grad_normed = grad_y.to(inner) * gain
    grad_x = rstd[:, None] * (grad_normed - normed * (grad_normed * normed).mean(dim=1, keepdim=True))
    if grad_residual is not None:
        grad_x = grad_x + grad_residual
    total = (grad_y.to(inner) * normed).sum(dim=0)
    return grad_x.to(x.dtype), total if grad_gain is None else grad_gain.copy_(total)


def gain_partials(x: Tensor, norms: int) -> Tensor:
    """Return an uninitialized tensor [norms, 1, hidden] for gradients of gains of norms of x [tokens, hidden]."""
    return torch.empty(norms, 1, x.shape[1], dtype=_inner_dtype(x), device=x.device)


def backward_to_partials(
    grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
) -> Tensor:
    """Return grad_x [tokens, hidden] as `backward` does, and write the gain's gradient to partials [1, hidden]."""
    return backward(grad_y, x, gain, rstd, grad_residual, partials[0])[0]


def reduce_gains(partials: Tensor, grad_gains: Tensor) -> None:
    """Write the sum of partials [norms, P, hidden] over P into grad_gains, which has norms * hidden elements."""
    grad_gains.copy_(partials.sum(dim=1).view_as(grad_gains))
