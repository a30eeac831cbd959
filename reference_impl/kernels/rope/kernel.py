"""Rotary position embedding, rotate-half convention, in place on the packed query-key-value matrix.

Legend: T = batch * S tokens, S sequence length, N query heads, Nkv key and value heads, D head_dim.

    (a, b) = halves of a head:  a, b = a * cos - b * sin, b * cos + a * sin      fp32, rounded once; inverse negates sin

One program rotates all heads of one token. `backward` also packs: attention gives the gradients of query, key and value
as three matrices, and the projection's gradient needs them rotated back and side by side.
"""

from __future__ import annotations

import functools

import torch
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


@kernel()
def _backward_kernel(
    grad_query: tl.tensor,
    grad_key: tl.tensor,
    grad_value: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    grad_qkv: tl.tensor,
    S: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    head = tl.arange(0, HEAD_BLOCK)
    lane = tl.arange(0, HALF_BLOCK)
    width = lane < HALF
    table = (token % S) * HALF + lane
    cosine = tl.load(cos + table, mask=width, other=0.0)[None, :]
    sine = tl.load(sin + table, mask=width, other=0.0)[None, :]
    # Every head lies in one of three matrices; the other two read nothing, and 0 for it.
    row = token.to(tl.int64)
    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    query = grad_query + (row * HEADS + head)[:, None] * (2 * HALF) + lane[None, :]
    key = grad_key + (row * KV_HEADS + (head - HEADS))[:, None] * (2 * HALF) + lane[None, :]
    value = grad_value + (row * KV_HEADS + (head - HEADS - KV_HEADS))[:, None] * (2 * HALF) + lane[None, :]
    in_query, in_key = is_query[:, None] & width[None, :], is_key[:, None] & width[None, :]
    in_value = is_value[:, None] & width[None, :]
    a = tl.load(query, mask=in_query, other=0.0).to(tl.float32) + tl.load(key, mask=in_key, other=0.0).to(tl.float32)
    b = tl.load(query + HALF, mask=in_query, other=0.0).to(tl.float32)
    b += tl.load(key + HALF, mask=in_key, other=0.0).to(tl.float32)
    kept_a = tl.load(value, mask=in_value, other=0.0)
    kept_b = tl.load(value + HALF, mask=in_value, other=0.0)
    turned_a = (a * cosine + b * sine).to(grad_qkv.dtype.element_ty)
    turned_b = (b * cosine - a * sine).to(grad_qkv.dtype.element_ty)
    out = grad_qkv + (row * (HEADS + 2 * KV_HEADS) + head)[:, None] * (2 * HALF) + lane[None, :]
    inside = (head < HEADS + 2 * KV_HEADS)[:, None] & width[None, :]
    tl.store(out, tl.where(is_value[:, None], kept_a, turned_a), mask=inside)
    tl.store(out + HALF, tl.where(is_value[:, None], kept_b, turned_b), mask=inside)


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


@functools.cache
def backward_spec(tokens: int, seq_len: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> KernelSpec:
    """Kernel of `backward` for `tokens` tokens of `heads` query heads and `kv_heads` key and as many value heads."""
    head_block = triton.next_power_of_2(heads + 2 * kv_heads)
    half_block = triton.next_power_of_2(head_dim // 2)
    gradients = tuple(Pointer(name, dtype) for name in ("grad_query", "grad_key", "grad_value"))
    return KernelSpec(
        op="rope.backward",
        shape=(tokens, seq_len, heads, kv_heads, head_dim),
        dtype=dtype,
        constants=(),
        num_warps=max(1, min(8, head_block * half_block // (32 * _ELEMENTS_PER_THREAD))),
        num_stages=1,
        function=_backward_kernel,
        pointers=(*gradients, Pointer("cos", "fp32"), Pointer("sin", "fp32"), Pointer("grad_qkv", dtype)),
        constexprs={
            "S": seq_len,
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HALF": head_dim // 2,
            "HEAD_BLOCK": head_block,
            "HALF_BLOCK": half_block,
        },
        grid=(tokens,),
    )


def specializations(
    *, tokens: int, seq_len: int, heads: int, kv_heads: int, head_dim: int, dtype: str
) -> list[KernelSpec]:
    """The forward and the backward rotation of packed [tokens, (heads + 2 * kv_heads) * head_dim] activations."""
    width, rotated = (heads + 2 * kv_heads) * head_dim, heads + kv_heads
    return [
        apply_spec(tokens, width, seq_len, rotated, head_dim, dtype, inverse=False),
        backward_spec(tokens, seq_len, heads, kv_heads, head_dim, dtype),
    ]


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


def backward(
    grad_query: Tensor, grad_key: Tensor, grad_value: Tensor, cos: Tensor, sin: Tensor, seq_len: int, head_dim: int
) -> Tensor:
    """Gradients of rotated query [T, N * D], rotated key [T, Nkv * D], value [T, Nkv * D] -> of qkv before rotation.

    The result is [T, (N + 2 * Nkv) * D]; cos, sin f32 [S, D/2]. T must be a multiple of `seq_len`, `head_dim` even.
    """
    (tokens, width), kv_width = grad_query.shape, grad_key.shape[1]
    dtype = dtype_name("rope.backward", "grad_query", grad_query.dtype)
    spec = backward_spec(tokens, seq_len, width // head_dim, kv_width // head_dim, head_dim, dtype)
    if tokens % seq_len or head_dim % 2 or width % head_dim or kv_width % head_dim:
        found = f"[{tokens}, {width}] beside [{tokens}, {kv_width}] for seq_len {seq_len}, heads of {head_dim}"
        raise KernelArgumentError(spec.op, "grad_query", found, "pass whole sequences, an even head_dim, whole heads")
    for name, tensor in (("grad_key", grad_key), ("grad_value", grad_value)):
        require_shape(spec.op, name, tensor, (tokens, kv_width))
    require_shape(spec.op, "cos", cos, (seq_len, head_dim // 2))
    require_shape(spec.op, "sin", sin, (seq_len, head_dim // 2))
    grad_qkv = torch.empty(tokens, width + 2 * kv_width, dtype=grad_query.dtype, device=grad_query.device)
    launch(spec, grad_query, grad_key, grad_value, cos, sin, grad_qkv)
    return grad_qkv
