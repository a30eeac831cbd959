"""Causal grouped-query attention in plain torch, with an explicit softmax.

B batch, S seq_len, T = B*S tokens, N query heads, Nkv key and value heads, G = N/Nkv, D head_dim. Query head n uses the
key and value head n // G. Intermediate results are float32, or float64 for float64 inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.rope import naive as rope


def _grouped(rows: Tensor, batch: int, kv_heads: int, head_dim: int) -> Tensor:
    """Return rows [T, N * D] as [B*Nkv, G*S, D] in float32 or float64: a matrix for each key head's G query heads."""
    inner = torch.float64 if rows.dtype == torch.float64 else torch.float32
    heads = rows.to(inner).view(batch, -1, rows.shape[1] // head_dim, head_dim).transpose(1, 2)
    return heads.reshape(batch * kv_heads, -1, head_dim)


def _split(qkv: Tensor, batch: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [T, (N + 2*Nkv) * D] into query [B*Nkv, G*S, D] and key, value [B*Nkv, S, D]. Letters: top of file."""
    query, key, value = torch.split(qkv, [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    return (
        _grouped(query, batch, kv_heads, head_dim),
        _grouped(key, batch, kv_heads, head_dim),
        _grouped(value, batch, kv_heads, head_dim),
    )


def _packed(grouped: Tensor, batch: int, seq_len: int) -> Tensor:
    """Do the inverse of `_grouped`: return grouped [B*Nkv, G*S, D] as [T, N * D]."""
    return grouped.view(batch, -1, seq_len, grouped.shape[-1]).transpose(1, 2).reshape(batch * seq_len, -1)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """Return the scores q k^T / sqrt(D) [B*Nkv, G*S, S], with -inf for keys after the query."""
    seq_len, head_dim = key.shape[-2:]
    scores: Tensor = query @ (key * head_dim**-0.5).transpose(-1, -2)
    later = torch.ones(seq_len, seq_len, dtype=torch.bool, device=query.device).triu(1)
    return scores.masked_fill_(later.repeat(query.shape[1] // seq_len, 1), -torch.inf)


def forward(qkv: Tensor, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return attention's output [T, N*D], and the natural logarithm of the sum of exp(score) of each query, [B, N, S].

    B batch, S seq_len, T = B*S tokens, N heads, Nkv kv_heads, D head_dim. qkv [T, (N + 2*Nkv) * D]: query, key and
    value heads of each token, after the rotary embedding.
    """
    query, key, value = _split(qkv, batch, heads, kv_heads, head_dim)
    scores = _scores(query, key)
    maximum = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(maximum).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    log_sum_exp = maximum + total.log()
    return _packed(weights @ value / total, batch, seq_len).to(qkv.dtype), log_sum_exp.view(batch, heads, seq_len)


def backward(
    grad_output: Tensor,
    qkv: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    cos: Tensor,
    sin: Tensor,
    batch: int,
    seq_len: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> Tensor:
    """Return the gradient [T, (N + 2*Nkv) * D] of qkv before the rotary embedding; qkv is `forward`'s argument.

    With P = exp(scores - log_sum_exp): dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = dS K / sqrt(D),
    dK = dS^T Q / sqrt(D). The products with P^T and dS^T sum over the queries of all query heads that share a key head.
    output [T, N*D], log_sum_exp [B, N, S]: results of `forward`. cos, sin: [S, D/2].
    """
    query, key, value = _split(qkv, batch, heads, kv_heads, head_dim)
    grad = _grouped(grad_output, batch, kv_heads, head_dim)
    weights = _scores(query, key).sub_(log_sum_exp.view(batch * kv_heads, -1, 1)).exp_()
    delta = (grad * _grouped(output, batch, kv_heads, head_dim)).sum(dim=-1, keepdim=True)
    grad_scores = (grad @ value.transpose(-1, -2)).sub_(delta).mul_(weights)
    scale = head_dim**-0.5
    parts = (
        grad_scores @ (key * scale),
        grad_scores.transpose(-1, -2) @ (query * scale),
        weights.transpose(-1, -2) @ grad,
    )
    grad_qkv = torch.cat([_packed(part, batch, seq_len) for part in parts], dim=1)
    rope.apply_(grad_qkv, cos, sin, seq_len, heads + kv_heads, head_dim, inverse=True)
    return grad_qkv.to(qkv.dtype)
