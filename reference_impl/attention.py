"""Causal grouped-query attention with rotary embedding on a fused qkv matrix.

B batch, S seq_len, T = B*S tokens, N query heads, Nkv key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reference_impl import ops
from reference_impl.config import ModelConfig
from reference_impl.kernels.rope import naive


@dataclass(frozen=True)
class StepShape:
    """The shape of a batch, with its rotary tables, float32 [S, D/2]."""

    batch_size: int
    seq_len: int
    cos: Tensor
    sin: Tensor

    @property
    def tokens(self) -> int:
        return self.batch_size * self.seq_len


def add_rotate_(qkv: Tensor, low_rank: Tensor, b: Tensor, shape: StepShape, config: ModelConfig) -> None:
    """Compute qkv [T, QKV] += low_rank [T, 2r] @ b [QKV, 2r]^T and rotate its query and key heads, in place.

    QKV = (N + 2*Nkv) * D.
    """
    heads = config.num_heads + config.num_kv_heads
    ops.rope_add_rotate_(qkv, low_rank, b, shape.cos, shape.sin, shape.seq_len, heads, config.head_dim)


def rotate_(qkv: Tensor, shape: StepShape, config: ModelConfig) -> None:
    """Rotate the query and key heads of qkv [T, QKV] in place, by plain torch, for a model without LoRA."""
    heads = config.num_heads + config.num_kv_heads
    naive.apply_(qkv, shape.cos, shape.sin, shape.seq_len, heads, config.head_dim, inverse=False)


def _sizes(shape: StepShape, config: ModelConfig) -> tuple[int, int, int, int, int]:
    return shape.batch_size, shape.seq_len, config.num_heads, config.num_kv_heads, config.head_dim


def forward(qkv: Tensor, shape: StepShape, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Compute attention over rotated qkv [T, (N + 2*Nkv) * D] -> output [T, N*D], log-sum-exp of scores [B, N, S]."""
    return ops.attention_forward(qkv, *_sizes(shape, config))


def backward(
    grad_output: Tensor, qkv: Tensor, output: Tensor, log_sum_exp: Tensor, shape: StepShape, config: ModelConfig
) -> Tensor:
    """grad_output [T, N*D] -> gradient [T, (N + 2*Nkv) * D] of qkv before its rotation."""
    return ops.attention_backward(grad_output, qkv, output, log_sum_exp, shape.cos, shape.sin, *_sizes(shape, config))
