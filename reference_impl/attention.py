"""Causal grouped-query attention with rotary embedding on a fused qkv matrix.

B batch, S seq_len, T = B*S tokens, N query heads, Nkv key/value heads, D head_dim. This is the one place where autograd
works: around `scaled_dot_product_attention`, whose backends keep their own saved state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reference_impl import ops
from reference_impl.config import ModelConfig


@dataclass(frozen=True)
class StepShape:
    """The shape of a batch and the rotary tables, float32 [S, D/2], that go with it."""

    batch_size: int
    seq_len: int
    cos: Tensor
    sin: Tensor

    @property
    def tokens(self) -> int:
        return self.batch_size * self.seq_len


@dataclass(frozen=True)
class AttentionState:
    """The autograd graph of one attention call: its leaves and its output."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


def rotate_(qkv: Tensor, shape: StepShape, config: ModelConfig) -> None:
    """Rotary embedding of the query and key heads of qkv [T, (N + 2*Nkv) * D], in place."""
    heads = config.num_heads + config.num_kv_heads
    ops.rope_apply_(qkv, shape.cos, shape.sin, shape.seq_len, heads, config.head_dim, inverse=False)


def forward(qkv: Tensor, shape: StepShape, config: ModelConfig) -> AttentionState:
    """Attention over rotated qkv [T, (N + 2*Nkv) * D]; ``state.output`` is [T, N*D]."""
    kv_heads = config.num_kv_heads
    heads = qkv.detach().view(shape.batch_size, shape.seq_len, -1, config.head_dim).transpose(1, 2)
    parts = torch.split(heads, [config.num_heads, kv_heads, kv_heads], dim=1)
    query, key, value = (part.detach().requires_grad_() for part in parts)
    with torch.enable_grad():
        if qkv.device.type == "cuda":
            out = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            # The CPU's flash attention takes equal head counts only.
            group = config.num_heads // kv_heads
            out = scaled_dot_product_attention(
                query, key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1), is_causal=True
            )
        output = out.transpose(1, 2).reshape(shape.tokens, config.query_dim)
    return AttentionState(query, key, value, output)


def backward(grad_output: Tensor, state: AttentionState, shape: StepShape, config: ModelConfig) -> Tensor:
    """grad_output [T, N*D] -> gradient [T, (N + 2*Nkv) * D] of qkv before its rotation."""
    grads = torch.autograd.grad(state.output, (state.query, state.key, state.value), grad_output)
    # [B, N, S, D]; the backends give them the memory order of their inputs, so that these are views.
    query, key, value = (grad.transpose(1, 2).reshape(shape.tokens, -1) for grad in grads)
    return ops.rope_backward(query, key, value, shape.cos, shape.sin, shape.seq_len, config.head_dim)
