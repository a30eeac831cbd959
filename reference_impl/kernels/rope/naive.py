"""Rotary position embedding, rotate-half convention, in plain torch.

T = batch * seq_len tokens, N query heads, Nkv key and value heads, D head_dim, R columns of the low-rank activations.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tables(seq_len: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32 [seq_len, D/2], of position * theta^(-2i/D) for i < D/2, where D is head_dim."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float() / head_dim
    angles = torch.outer(torch.arange(seq_len, device=device).float(), 1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def apply_(
    qkv: Tensor, cos: Tensor, sin: Tensor, seq_len: int, heads_to_rotate: int, head_dim: int, inverse: bool
) -> None:
    """Apply rotary embedding in place to the first `heads_to_rotate` heads of qkv [tokens, width]. inverse: undo it."""
    inner = torch.float64 if qkv.dtype == torch.float64 else torch.float32
    heads = qkv[:, : heads_to_rotate * head_dim].view(-1, seq_len, heads_to_rotate, head_dim)
    first, second = heads.to(inner).chunk(2, dim=-1)
    cosine = cos[:, None, :]
    sine = -sin[:, None, :] if inverse else sin[:, None, :]
    heads.copy_(torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1))


def add_rotate_(
    qkv: Tensor,
    low_rank: Tensor,
    b: Tensor,
    cos: Tensor,
    sin: Tensor,
    seq_len: int,
    heads_to_rotate: int,
    head_dim: int,
) -> None:
    """Add low_rank [T, R] @ b^T to qkv [T, width]. Then apply rotary embedding to its first ``heads_to_rotate`` heads.

    T: tokens. R: columns of low_rank. width = (query heads + 2 * key heads) * head_dim. b [width, R]. Sum and rotation
    are computed in fp32 (fp64 for fp64 inputs) and rounded once.
    """
    inner = torch.float64 if qkv.dtype == torch.float64 else torch.float32
    summed = torch.addmm(qkv.to(inner), low_rank.to(inner), b.t().to(inner))
    apply_(summed, cos, sin, seq_len, heads_to_rotate, head_dim, inverse=False)
    qkv.copy_(summed)
