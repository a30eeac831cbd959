"""Attention against its naive twin in fp64, with bounds derived from rounding as `kernel_oracles` derives them.

B batch, S seq_len, N query heads, Nkv key and value heads, D head_dim. `half` is the data's unit roundoff where P, dS
and a head's share of dK and dV are rounded to the data's dtype; fp32 keeps them as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from kernel_oracles import Comparison, U, _generator, _random, compare, guarded_outputs
from torch import Tensor

from reference_impl.kernels.attention import kernel as attention
from reference_impl.kernels.attention import naive


@dataclass(frozen=True)
class Case:
    """One attention call; the key and value heads of `per_head` are repeated for each of their query heads."""

    batch: int
    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return self.batch, self.seq_len, self.heads, self.kv_heads, self.head_dim

    def per_head(self, rows: Tensor) -> Tensor:
        """[T, heads * D] -> fp64 [B, N, S, D]."""
        split = rows.double().view(self.batch, self.seq_len, -1, self.head_dim).transpose(1, 2)
        return split.repeat_interleave(self.heads // split.shape[1], dim=1)

    def packed(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(self.batch * self.seq_len, -1)

    def group_sum(self, heads: Tensor) -> Tensor:
        return heads.view(self.batch, self.kv_heads, -1, self.seq_len, self.head_dim).sum(2)

    def parts(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        widths = [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]
        query, key, value = torch.split(qkv, widths, dim=1)
        return self.per_head(query), self.per_head(key), self.per_head(value)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Magnitude of a sum of products: a sum of n of them errs by n u of it, in whatever order."""
    return left.abs() @ right.abs()


def scores_and_error(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Scores, and P's relative error: the score's, and the roundings of exp2's argument and result."""
    seq_len, head_dim = q.shape[2:]
    later = torch.ones(seq_len, seq_len, dtype=torch.bool, device=q.device).triu(1)
    scores = head_dim**-0.5 * q @ k.transpose(2, 3)
    error = ((head_dim + 4) * head_dim**-0.5 * product(q, k.transpose(2, 3)) + 4 * scores.abs() + 8) * U
    return scores.masked_fill(later, -math.inf), error.masked_fill(later, 0.0)


def forward_bounds(q: Tensor, k: Tensor, v: Tensor, half: float) -> tuple[Tensor, Tensor]:
    """Of the output, per head, and of the log-sum-exp [B, N, S]."""
    scores, error = scores_and_error(q, k)
    log_sum = scores.logsumexp(dim=3, keepdim=True)
    p = torch.exp(scores - log_sum)
    highest = scores.masked_fill(scores.isinf(), 0.0).abs().amax(dim=3, keepdim=True)
    # The running maximum: its error is a score's. A step of it rescales both sums, a product of an exponential.
    row = error.amax(dim=3, keepdim=True) + (4 * highest + 8) * U
    total = row + (q.shape[2] * 8 + 16) * U
    output = (p * (error + row + half)) @ v.abs() + product(p, v) * (total + q.shape[2] * U)
    return output, (total + 4 * U * (log_sum.abs() + highest)).squeeze(3)


def backward_bounds(case: Case, qkv: Tensor, saved: tuple[Tensor, Tensor], grad: Tensor, half: float) -> list[Tensor]:
    """Of dQ, dK and dV before the rotation, packed; the backward starts from the saved output and log-sum-exp."""
    (q, k, v), d_out, out = case.parts(qkv), case.per_head(grad), case.per_head(saved[0])
    log_sum = saved[1].double()[..., None]
    scores, error = scores_and_error(q, k)
    p = torch.exp(scores - log_sum)
    p_error = p * (error + 4 * U * log_sum.abs())
    difference = d_out @ v.transpose(2, 3) - (d_out * out).sum(dim=3, keepdim=True)
    magnitude = product(d_out, v.transpose(2, 3)) + (d_out * out).abs().sum(dim=3, keepdim=True)
    ds = p * difference
    ds_error = p_error * difference.abs() + p * magnitude * (case.head_dim + 4) * U + ds.abs() * (half + 2 * U)
    p_error = p_error + half * p
    scale, sums = case.head_dim**-0.5, (case.seq_len + 8) * U
    ds_t, p_t = ds.transpose(2, 3), p.transpose(2, 3)
    dq = scale * (product(ds_error, k) + sums * product(ds, k))
    dk = scale * (product(ds_error.transpose(2, 3), q) + sums * product(ds_t, q))
    dv = product(p_error.transpose(2, 3), d_out) + sums * product(p_t, d_out)
    # A head's share is rounded, then the shares of a group are added up.
    share = half + case.heads * U
    dk, dv = dk + share * (scale * ds_t @ q).abs(), dv + share * (p_t @ d_out).abs()
    return [case.packed(part) for part in (dq, case.group_sum(dk), case.group_sum(dv))]


def rotated_bound(case: Case, bounds: list[Tensor], expected: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotated back, each half of dQ and dK has its share of both halves' errors, and three roundings."""
    bound = torch.cat(bounds, dim=1)
    width = (case.heads + case.kv_heads) * case.head_dim
    halves = bound[:, :width].view(case.batch, case.seq_len, -1, 2, case.head_dim // 2)
    length = expected[:, :width].view_as(halves).square().sum(dim=3, keepdim=True).sqrt()
    c, s = (table.double().abs()[:, None, None, :] for table in (cos, sin))
    turned = halves * c + halves.flip(3) * s + 6 * U * length
    return torch.cat((turned.reshape(bound.shape[0], -1), bound[:, width:]), dim=1)


def check_attention(device: torch.device, dtype: torch.dtype, *sizes: int) -> list[Comparison]:
    """`sizes`: batch, seq_len, heads, kv_heads, head_dim."""
    case, generator = Case(*sizes), _generator(device)
    tokens = case.batch * case.seq_len
    qkv = _random(generator, tokens, (case.heads + 2 * case.kv_heads) * case.head_dim, dtype=dtype)
    grad = _random(generator, tokens, case.heads * case.head_dim, dtype=dtype)
    angles = torch.rand(case.seq_len, case.head_dim // 2, generator=generator, device=device) * 6.3
    cos, sin = angles.cos(), angles.sin()
    with guarded_outputs():
        saved = attention.forward(qkv, *case.sizes)
        grad_qkv = attention.backward(grad, qkv, *saved, cos, sin, *case.sizes)
    expected = naive.forward(qkv.double(), *case.sizes)
    given = (grad.double(), qkv.double(), saved[0].double(), saved[1].double(), cos, sin)
    expected_grad = naive.backward(*given, *case.sizes)
    half = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps / 2
    output_bound, sum_bound = forward_bounds(*case.parts(qkv), half)
    grad_bound = rotated_bound(case, backward_bounds(case, qkv, saved, grad, half), expected_grad, cos, sin)
    return [
        compare("output", saved[0], expected[0], case.packed(output_bound)),
        compare("log_sum_exp", saved[1], expected[1], sum_bound),
        compare("grad_qkv", grad_qkv, expected_grad, grad_bound),
    ]
