"""Add LoRA's product to the packed query-key-value matrix, and apply rotary embedding (rotate-half), in one kernel.

Legend: T = batch * S tokens, S sequence length, N query heads, Nkv key and value heads, D head_dim, R columns of the
low-rank activations (those of q and v side by side).

    qkv += low_rank @ b^T,    then for the query and key heads, whose halves are (x, y):
    x, y = x * cos - y * sin, y * cos + x * sin               both steps in fp32, rounded once

One program processes EACH heads of BLOCK tokens, and reads the angles once for all heads. Values are not rotated.
"""

from __future__ import annotations

import functools
import math

import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import (
    KernelArgumentError,
    KernelSpec,
    Pointer,
    dtype_name,
    kernel,
    launch,
    require_shape,
)

_BLOCK = 32
# Largest number of heads that one program handles. On an H200, for 2048 tokens, the kernel took 9.2 us with 2 heads for
# each program, 10.2 us with 1, 11.8 us with 4.
_MOST_HEADS = 2
# `tl.dot` needs at least 16 columns and at least 16 summands.
_FEWEST = 16


@kernel()
def _add_rotate_kernel(
    qkv: tl.tensor,
    low_rank: tl.tensor,
    b: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    T: tl.constexpr,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    R: tl.constexpr,
    R_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    EACH: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, HALF_BLOCK)
    rank = tl.arange(0, R_BLOCK)
    inside = (row < T)[:, None] & (lane < HALF)[None, :]
    angle = (row % S)[:, None] * HALF + lane[None, :]
    cosine = tl.load(cos + angle, mask=inside, other=0.0)
    sine = tl.load(sin + angle, mask=inside, other=0.0)
    low = tl.load(low_rank + row[:, None] * R + rank[None, :], mask=(row < T)[:, None] & (rank < R)[None, :], other=0.0)
    factors = (rank < R)[:, None] & (lane < HALF)[None, :]
    for offset in tl.static_range(EACH):
        head = tl.program_id(1) * EACH + offset
        column = head * (2 * HALF) + lane
        first_b = tl.load(b + column[None, :] * R + rank[:, None], mask=factors, other=0.0)
        second_b = tl.load(b + (column + HALF)[None, :] * R + rank[:, None], mask=factors, other=0.0)
        first = row[:, None].to(tl.int64) * WIDTH + column[None, :]
        x = tl.load(qkv + first, mask=inside, other=0.0) + tl.dot(low, first_b, input_precision="ieee")
        y = tl.load(qkv + first + HALF, mask=inside, other=0.0) + tl.dot(low, second_b, input_precision="ieee")
        if head < HEADS:
            tl.store(qkv + first, (x * cosine - y * sine).to(qkv.dtype.element_ty), mask=inside)
            tl.store(qkv + first + HALF, (y * cosine + x * sine).to(qkv.dtype.element_ty), mask=inside)
        else:
            tl.store(qkv + first, x.to(qkv.dtype.element_ty), mask=inside)
            tl.store(qkv + first + HALF, y.to(qkv.dtype.element_ty), mask=inside)


@functools.cache
def add_rotate_spec(
    tokens: int, width: int, factors: int, seq_len: int, heads_to_rotate: int, head_dim: int, dtype: str
) -> KernelSpec:
    """Return the spec (description) of the kernel that `add_rotate_` launches for qkv [tokens, width] and low-rank
    activations [tokens, factors] of `dtype`."""
    heads = width // head_dim
    each = math.gcd(heads, _MOST_HEADS)
    return KernelSpec(
        op="rope.add_rotate",
        shape=(tokens, width, factors, seq_len, heads_to_rotate, head_dim),
        dtype=dtype,
        constants=(),
        num_warps=4,
        num_stages=1,
        function=_add_rotate_kernel,
        pointers=(
            *(Pointer(name, dtype) for name in ("qkv", "low_rank", "b")),
            Pointer("cos", "fp32"),
            Pointer("sin", "fp32"),
        ),
        constexprs={
            "T": tokens,
            "S": seq_len,
            "WIDTH": width,
            "HEADS": heads_to_rotate,
            "HALF": head_dim // 2,
            "HALF_BLOCK": max(_FEWEST, triton.next_power_of_2(head_dim // 2)),
            "R": factors,
            "R_BLOCK": max(_FEWEST, triton.next_power_of_2(factors)),
            "BLOCK": _BLOCK,
            "EACH": each,
        },
        grid=(triton.cdiv(tokens, _BLOCK), heads // each),
    )


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
    """Add low_rank [T, R] @ b^T to qkv [T, width]. Then apply rotary embedding to its first `heads_to_rotate` heads.

    T: tokens. R: columns of low_rank. width = (query heads + 2 * key heads) * head_dim. b [width, R]; cos, sin f32
    [seq_len, head_dim / 2]. `seq_len` divides T, `head_dim` is even and divides width.
    """
    tokens, width = qkv.shape
    dtype = dtype_name("rope.add_rotate", "qkv", qkv.dtype)
    factors = low_rank.shape[-1]
    spec = add_rotate_spec(tokens, width, factors, seq_len, heads_to_rotate, head_dim, dtype)
    if tokens % seq_len or head_dim % 2 or width % head_dim or heads_to_rotate * head_dim > width:
        found = f"[{tokens}, {width}] for seq_len {seq_len}, {heads_to_rotate} heads to rotate, head_dim {head_dim}"
        raise KernelArgumentError(
            spec.op, "qkv", found, "pass whole sequences, an even head_dim and at least this many heads"
        )
    require_shape(spec.op, "low_rank", low_rank, (tokens, factors))
    require_shape(spec.op, "b", b, (width, factors))
    require_shape(spec.op, "cos", cos, (seq_len, head_dim // 2))
    require_shape(spec.op, "sin", sin, (seq_len, head_dim // 2))
    launch(spec, qkv, low_rank, b, cos, sin)
