"""Causal grouped-query attention with rotary embedding on a fused qkv matrix.

Legend: B batch size, S sequence length, T = B*S tokens, N query heads, Nkv key/value heads, D head dimension, r LoRA
rank, QKV = (N + 2*Nkv) * D.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reference_impl import ops
from reference_impl.config import ModelConfig
from reference_impl.kernels.rope import naive


@dataclass(frozen=True)
class StepShape:
    """The batch size and the sequence length S of a step, with the rotary tables cos and sin, float32 [S, D/2]."""

    batch_size: int
    seq_len: int
    cos: Tensor
    sin: Tensor

    @property
    def tokens(self) -> int:
        return self.batch_size * self.seq_len


def add_rotate_(qkv: Tensor, low_rank: Tensor, b: Tensor, shape: StepShape, config: ModelConfig) -> None:
    """Compute qkv [T, QKV] += low_rank [T, 2r] @ b [QKV, 2r]^T. Then apply rotary embedding to the heads of q and k."""
    heads = config.num_heads + config.num_kv_heads
    ops.rope_add_rotate_(qkv, low_rank, b, shape.cos, shape.sin, shape.seq_len, heads, config.head_dim)


def rotate_(qkv: Tensor, shape: StepShape, config: ModelConfig) -> None:
    """Apply rotary embedding in place to the heads of q and k in qkv [T, QKV], in plain torch, for use without LoRA."""
    heads = config.num_heads + config.num_kv_heads
    naive.apply_(qkv, shape.cos, shape.sin, shape.seq_len, heads, config.head_dim, inverse=False)


def _sizes(shape: StepShape, config: ModelConfig) -> tuple[int, int, int, int, int]:
    return shape.batch_size, shape.seq_len, config.num_heads, config.num_kv_heads, config.head_dim


def forward(qkv: Tensor, shape: StepShape, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return attention's output [T, N*D], and the logarithm of the sum of exp(score) of each query, [B, N, S].

    qkv [T, QKV]: query, key and value heads of each token, after the rotary embedding.
    """
    return ops.attention_forward(qkv, *_sizes(shape, config))


def backward(
    grad_output: Tensor, qkv: Tensor, output: Tensor, log_sum_exp: Tensor, shape: StepShape, config: ModelConfig
) -> Tensor:
    """Return the gradient [T, QKV] with respect to qkv as it was before the rotary embedding.

    grad_output: the gradient [T, N*D] of attention's output. qkv: the argument of `forward`, after the rotary
    embedding. output, log_sum_exp: the results of `forward`.
    """
    return ops.attention_backward(grad_output, qkv, output, log_sum_exp, shape.cos, shape.sin, *_sizes(shape, config))
