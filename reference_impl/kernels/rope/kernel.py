"""Rotary position embedding, rotate-half convention, in place on the packed query-key-value matrix.

Legend: T = batch * S tokens, S sequence length, N query heads, Nkv key and value heads, D head_dim.

    (a, b) = halves of a head:  a, b = a * cos - b * sin, b * cos + a * sin      fp32, rounded once; inverse negates sin

One program rotates all heads of one token.
"""

from __future__ import annotations

import functools

import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.registry import (
    KernelArgumentError,
    KernelSpec,
    Pointer,
    dtype_name,
    kernel,
    launch,
    require_shape,
)

# Elements of each half that a thread holds: one 16-byte load of bf16.
_ELEMENTS_PER_THREAD = 8


@kernel()
def _apply_kernel(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    INVERSE: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    head = tl.arange(0, HEAD_BLOCK)
    lane = tl.arange(0, HALF_BLOCK)
    table = (token % S) * HALF + lane
    cosine = tl.load(cos + table, mask=lane < HALF, other=0.0)[None, :]
    sine = tl.load(sin + table, mask=lane < HALF, other=0.0)[None, :]
    if INVERSE:
        sine = -sine
    first = token.to(tl.int64) * WIDTH + head[:, None] * (2 * HALF) + lane[None, :]
    inside = (head < HEADS)[:, None] & (lane < HALF)[None, :]
    a = tl.load(qkv + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(qkv + first + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(qkv + first, (a * cosine - b * sine).to(qkv.dtype.element_ty), mask=inside)
    tl.store(qkv + first + HALF, (b * cosine + a * sine).to(qkv.dtype.element_ty), mask=inside)


@functools.cache
def apply_spec(
    tokens: int, width: int, seq_len: int, heads_to_rotate: int, head_dim: int, dtype: str, *, inverse: bool
) -> KernelSpec:
    """Kernel of `apply_` for qkv [tokens, width] of `dtype`."""
    head_block = triton.next_power_of_2(heads_to_rotate)
    half_block = triton.next_power_of_2(head_dim // 2)
    return KernelSpec(
        op="rope.apply",
        shape=(tokens, width, seq_len, heads_to_rotate, head_dim),
        dtype=dtype,
        constants=(("inverse", inverse),),
        num_warps=max(1, min(8, head_block * half_block // (32 * _ELEMENTS_PER_THREAD))),
        num_stages=1,
        function=_apply_kernel,
        pointers=(Pointer("qkv", dtype), Pointer("cos", "fp32"), Pointer("sin", "fp32")),
        constexprs={
            "S": seq_len,
            "WIDTH": width,
            "HEADS": heads_to_rotate,
            "HALF": head_dim // 2,
            "HEAD_BLOCK": head_block,
            "HALF_BLOCK": half_block,
            "INVERSE": inverse,
        },
        grid=(tokens,),
    )


def apply_(
    qkv: Tensor, cos: Tensor, sin: Tensor, seq_len: int, heads_to_rotate: int, head_dim: int, inverse: bool
) -> None:
    """Rotate the first `heads_to_rotate` heads of qkv [T, (N + 2 * Nkv) * D] in place; cos, sin f32 [S, D/2].

    `inverse` rotates back. T must be a multiple of `seq_len`, `head_dim` even.
    """
    tokens, width = qkv.shape
    dtype = dtype_name("rope.apply", "qkv", qkv.dtype)
    spec = apply_spec(tokens, width, seq_len, heads_to_rotate, head_dim, dtype, inverse=inverse)
    if tokens % seq_len or head_dim % 2 or heads_to_rotate * head_dim > width:
        found = f"[{tokens}, {width}] for seq_len {seq_len}, {heads_to_rotate} heads of {head_dim}"
        raise KernelArgumentError(spec.op, "qkv", found, "pass whole sequences, an even head_dim and as many heads")
    require_shape(spec.op, "cos", cos, (seq_len, head_dim // 2))
    require_shape(spec.op, "sin", sin, (seq_len, head_dim // 2))
    launch(spec, qkv, cos, sin)
