"""Causal grouped-query attention on the packed query-key-value matrix, forward and backward, without atomics.

Legend: B batch, S sequence length, T = B * S tokens, N query heads, Nkv key and value heads, D head_dim, L: number of
rows of a block, which is a tile of queries or a tile of keys. lse: log-sum-exp of the scores of a query. Q, K, V, O:
queries, keys, values and output of one head. P: attention's probabilities. dX: the gradient of X.

    P = exp(Q K^T / sqrt(D) - lse),  O = P V                       for keys up to the position of the query
    dV = P^T dO,  dS = P * (dO V^T - delta),  delta = rowsum(dO * O),  dQ = dS K / sqrt(D),  dK = dS^T Q / sqrt(D)

The formulas and the precision are those of FlashAttention-2 (Dao 2023, arXiv 2307.08691). Products of the data's dtype
are accumulated in fp32, P and dS are rounded to the data's dtype, and lse is kept from the forward. FlashAttention-2
adds up dQ by atomics. Here one program writes each element of a gradient, and sums have a fixed order, so all runs have
equal bits. The cost is that P and dP are computed twice, once for dQ and once for dK and dV. The rotary embedding of dQ
and dK (`kernels/rope`) is undone in fp32.

On Hopper, if `hopper.serves` is True, the backward is two kernels in CUDA C++. Otherwise it is three kernels in Triton.
The first kernel writes delta. In the second kernel, a program computes either dQ of one query block, or dK and dV of
one key block for one query head, rounded to the data's dtype. The third kernel sums these dK and dV over the query
heads of a key head, and writes the sums into the packed gradient.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.attention import hopper
from reference_impl.kernels.attention.tiles import (
    attend,
    columns,
    key_value_gradient,
    load_rows,
    load_tile,
    query_gradient,
    rotate_back,
)
from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import (
    Constant,
    KernelArgumentError,
    KernelSpec,
    Pointer,
    dtype_name,
    kernel,
    launch,
    require_shape,
    shared_memory_bytes,
)

# Data type -> number of rows in a tile. One matrix instruction of a Hopper warp group processes 64 rows, and with 64
# rows, two programs fit on a multiprocessor. fp32 rows take twice the shared memory, so fp32 tiles have half as many.
_BLOCKS = {"bf16": 64, "fp16": 64, "fp32": 32}
_WARPS = 4
_STAGES = 2
# Number of key and value tiles that the forward kernel keeps in shared memory if it reads tiles by descriptor, so that
# the GPU's copy engine loads them. For 4 sequences of 2048 tokens on an H200, the kernel took 113 us with three tiles,
# and 128 us with two. Without descriptors, when the threads load the tiles, it took 125 us with three tiles and 133 us
# with two. With one loop for whole blocks and for blocks on the diagonal, it took 142 us.
_TILED_STAGES = 3
# Smallest sequence length for which tiles are read by descriptor. The host creates the descriptors at each launch, and
# this slows a step that is not captured. For 4 sequences of 512 tokens on an H200, descriptors did not make the
# captured step faster either: it took 26.8 ms without descriptors, and 26.9 ms with descriptors.
_TILED_FROM = 1024
# Number of rows that a program of the kernel for delta, and of the kernel that sums dK and dV, handles. At head_dim
# 128, a thread loads 16 bytes once or twice.
_DELTA_ROWS = 16
_REDUCE_ROWS = 8
# Least number of columns to which each half of a head is padded: `tl.dot` needs 16 columns in both together.
_MIN_HALF_BLOCK = 8


@kernel()
def _forward_kernel(
    qkv: tl.tensor,
    output: tl.tensor,
    log_sum_exp: tl.tensor,
    S: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    TILED: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * 2 * HALF
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    # Start the programs with the most keys first, so that no long program is left at the end.
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    key_head = HEADS + head // (HEADS // KV_HEADS)
    value_head = key_head + KV_HEADS
    token = (batch * S).to(tl.int64)
    row = block * BLOCK + tl.arange(0, BLOCK)
    query = load_tile(qkv, token, block * BLOCK, head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
    maximum = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    summed = tl.zeros([BLOCK, 2 * HALF_BLOCK], tl.float32)
    maximum, total, summed = attend(
        qkv, query, row, token, key_head, value_head, 0, block, maximum, total, summed,
        S, WIDTH, HALF, HALF_BLOCK, BLOCK, SCALE, TILED, DIAGONAL=False,
    )  # fmt: skip
    maximum, total, summed = attend(
        qkv, query, row, token, key_head, value_head, block, block + 1, maximum, total, summed,
        S, WIDTH, HALF, HALF_BLOCK, BLOCK, SCALE, TILED, DIAGONAL=True,
    )  # fmt: skip
    column, inside = columns(HALF, HALF_BLOCK)
    out = output + (batch * S).to(tl.int64) * (HEADS * 2 * HALF) + head * 2 * HALF
    normed = (summed / total[:, None]).to(output.dtype.element_ty)
    mask = (row < S)[:, None] & inside[None, :]
    tl.store(out + row[:, None] * (HEADS * 2 * HALF) + column[None, :], normed, mask=mask)
    # Convert from base 2 to the natural logarithm.
    natural = (maximum + tl.log2(total)) * 0.6931471805599453
    tl.store(log_sum_exp + tl.program_id(0) * S + row, natural, mask=row < S)


@kernel()
def _delta_kernel(
    grad_output: tl.tensor,
    output: tl.tensor,
    delta: tl.tensor,
    S: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column, inside = columns(HALF, HALF_BLOCK)
    first = (batch * S).to(tl.int64) * (HEADS * 2 * HALF) + head * 2 * HALF
    grad = load_rows(grad_output + first, row, column, inside, S, HEADS * 2 * HALF).to(tl.float32)
    out = load_rows(output + first, row, column, inside, S, HEADS * 2 * HALF).to(tl.float32)
    tl.store(delta + tl.program_id(0) * S + row, tl.sum(grad * out, axis=1), mask=row < S)


@kernel()
def _backward_kernel(
    grad_output: tl.tensor,
    qkv: tl.tensor,
    log_sum_exp: tl.tensor,
    delta: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    grad_qkv: tl.tensor,
    grad_key: tl.tensor,
    grad_value: tl.tensor,
    S: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    TILED: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * 2 * HALF
    OUT_WIDTH: tl.constexpr = HEADS * 2 * HALF
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    key_head = HEADS + head // (HEADS // KV_HEADS)
    value_head = key_head + KV_HEADS
    token = (batch * S).to(tl.int64)
    sums, deltas = log_sum_exp + tl.program_id(0) * S, delta + tl.program_id(0) * S
    # Start the longest programs first, so that no long program is left at the end. For dK and dV this is key block 0,
    # for dQ the last query block.
    rank = tl.program_id(1) // 2
    BLOCKS: tl.constexpr = (S + BLOCK - 1) // BLOCK
    if tl.program_id(1) % 2 == 0:
        row = rank * BLOCK + tl.arange(0, BLOCK)
        key_grad, value_grad = key_value_gradient(
            qkv, grad_output, head, key_head, value_head, token, sums, deltas, rank,
            BLOCKS, S, WIDTH, OUT_WIDTH, HALF, HALF_BLOCK, BLOCK, SCALE, TILED,
        )  # fmt: skip
        column, inside = columns(HALF, HALF_BLOCK)
        mask = (row < S)[:, None] & inside[None, :]
        offset = token * OUT_WIDTH + head * 2 * HALF + row[:, None] * OUT_WIDTH + column[None, :]
        tl.store(grad_key + offset, key_grad.to(grad_key.dtype.element_ty), mask=mask)
        tl.store(grad_value + offset, value_grad.to(grad_value.dtype.element_ty), mask=mask)
    else:
        block = BLOCKS - 1 - rank
        row = block * BLOCK + tl.arange(0, BLOCK)
        query_grad = query_gradient(
            qkv, grad_output, head, key_head, value_head, token, sums, deltas, block,
            S, WIDTH, OUT_WIDTH, HALF, HALF_BLOCK, BLOCK, SCALE, TILED,
        )  # fmt: skip
        # Split the tile, whose columns are the two halves of a head side by side, into these halves.
        halves = tl.permute(tl.reshape(query_grad, (BLOCK, 2, HALF_BLOCK)), (0, 2, 1))
        a, b = tl.split(halves)
        rotate_back(grad_qkv + token * WIDTH + head * 2 * HALF, a, b, cos, sin, row, row, S, S, WIDTH, HALF, HALF_BLOCK)


@kernel()
def _reduce_kernel(
    grad_key: tl.tensor,
    grad_value: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    grad_qkv: tl.tensor,
    T: tl.constexpr,
    S: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * 2 * HALF
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    kv_head = tl.program_id(1)
    lane = tl.arange(0, HALF_BLOCK)
    mask = (row < T)[:, None] & (lane < HALF)[None, :]
    source = row.to(tl.int64)[:, None] * (HEADS * 2 * HALF) + kv_head * GROUP * 2 * HALF + lane[None, :]
    is_key = tl.program_id(2) == 0
    partial = grad_key if is_key else grad_value
    a = tl.zeros([ROWS, HALF_BLOCK], tl.float32)
    b = tl.zeros([ROWS, HALF_BLOCK], tl.float32)
    for member in tl.static_range(GROUP):
        a += tl.load(partial + source + member * 2 * HALF, mask=mask, other=0.0).to(tl.float32)
        b += tl.load(partial + source + member * 2 * HALF + HALF, mask=mask, other=0.0).to(tl.float32)
    if is_key:
        out = grad_qkv + (HEADS + kv_head) * 2 * HALF
        rotate_back(out, a, b, cos, sin, row, row % S, T, S, WIDTH, HALF, HALF_BLOCK)
    else:
        out = grad_qkv + (HEADS + KV_HEADS + kv_head) * 2 * HALF
        target = out + row.to(tl.int64)[:, None] * WIDTH + lane[None, :]
        tl.store(target, a.to(grad_qkv.dtype.element_ty), mask=mask)
        tl.store(target + HALF, b.to(grad_qkv.dtype.element_ty), mask=mask)


def _half_block(head_dim: int) -> int:
    padded: int = triton.next_power_of_2(head_dim // 2)
    return max(_MIN_HALF_BLOCK, padded)


def _scale(head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim)


@functools.cache
def forward_spec(batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `forward` launches. Each of its programs computes one block of
    queries of one head."""
    block = _BLOCKS[dtype]
    tiled = _is_tiled(seq_len, head_dim, block, dtype)
    return KernelSpec(
        op="attention.forward",
        shape=(batch, seq_len, heads, kv_heads, head_dim),
        dtype=dtype,
        constants=(("block", block), ("tiled", tiled)),
        num_warps=_WARPS,
        num_stages=_tiled_stages(block, head_dim) if tiled else _STAGES,
        function=_forward_kernel,
        pointers=(
            Pointer("qkv", dtype, tile=(block, head_dim) if tiled else None),
            Pointer("output", dtype),
            Pointer("log_sum_exp", "fp32"),
        ),
        constexprs={**_sizes(seq_len, heads, kv_heads, head_dim, block), "TILED": tiled},
        grid=(batch * heads, -(-seq_len // block)),
    )


def _is_tiled(seq_len: int, head_dim: int, block: int, dtype: str) -> bool:
    """Return True if the forward reads tiles by descriptor.

    This requires a long sequence of whole blocks, a head_dim that is a power of two, and elements of 2 bytes. In fp32
    tiles are twice as large. With three such tiles, only one program would fit on a multiprocessor.
    """
    whole = head_dim // 2 == _half_block(head_dim) and seq_len % block == 0
    return whole and seq_len >= _TILED_FROM and dtype in ("bf16", "fp16")


def _tiled_stages(block: int, head_dim: int) -> int:
    """Return how many stages fit into shared memory next to the query's tile, for elements of two bytes."""
    tile = 2 * block * head_dim
    return _TILED_STAGES if (1 + 2 * _TILED_STAGES) * tile < shared_memory_bytes() else _STAGES


def _sizes(seq_len: int, heads: int, kv_heads: int, head_dim: int, block: int) -> dict[str, Constant]:
    return {
        "S": seq_len,
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HALF": head_dim // 2,
        "HALF_BLOCK": _half_block(head_dim),
        "BLOCK": block,
        "SCALE": _scale(head_dim),
    }


@functools.cache
def delta_spec(batch: int, seq_len: int, heads: int, head_dim: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the first Triton kernel of `backward`, which writes delta = rowsum(dO * O), fp32
    [batch, query heads, sequence length]."""
    return KernelSpec(
        op="attention.delta",
        shape=(batch, seq_len, heads, head_dim),
        dtype=dtype,
        constants=(),
        num_warps=_WARPS,
        num_stages=1,
        function=_delta_kernel,
        pointers=(Pointer("grad_output", dtype), Pointer("output", dtype), Pointer("delta", "fp32")),
        constexprs={
            "S": seq_len,
            "HEADS": heads,
            "HALF": head_dim // 2,
            "HALF_BLOCK": _half_block(head_dim),
            "ROWS": _DELTA_ROWS,
        },
        grid=(batch * heads, -(-seq_len // _DELTA_ROWS)),
    )


@functools.cache
def backward_spec(batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the second Triton kernel of `backward`.

    The kernel writes dQ to the packed gradient, and dK and dV of every query head to separate tensors [tokens, N * D].
    """
    block = _BLOCKS[dtype]
    tiled = _is_tiled(seq_len, head_dim, block, dtype)
    tile = (block, head_dim) if tiled else None
    names = ("grad_qkv", "grad_key", "grad_value")
    return KernelSpec(
        op="attention.backward",
        shape=(batch, seq_len, heads, kv_heads, head_dim),
        dtype=dtype,
        constants=(("block", block), ("tiled", tiled)),
        num_warps=_WARPS,
        num_stages=_STAGES,
        function=_backward_kernel,
        pointers=(
            Pointer("grad_output", dtype, tile=tile),
            Pointer("qkv", dtype, tile=tile),
            *(Pointer(name, "fp32") for name in ("log_sum_exp", "delta", "cos", "sin")),
            *(Pointer(name, dtype) for name in names),
        ),
        constexprs={**_sizes(seq_len, heads, kv_heads, head_dim, block), "TILED": tiled},
        grid=(batch * heads, 2 * -(-seq_len // block)),
    )


@functools.cache
def reduce_spec(batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the last Triton kernel of `backward`. It sums dK and dV over a key head's query
    heads and rotates dK."""
    tokens = batch * seq_len
    return KernelSpec(
        op="attention.reduce",
        shape=(batch, seq_len, heads, kv_heads, head_dim),
        dtype=dtype,
        constants=(),
        num_warps=2,
        num_stages=1,
        function=_reduce_kernel,
        pointers=(
            Pointer("grad_key", dtype),
            Pointer("grad_value", dtype),
            Pointer("cos", "fp32"),
            Pointer("sin", "fp32"),
            Pointer("grad_qkv", dtype),
        ),
        constexprs={
            "T": tokens,
            "S": seq_len,
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "HALF": head_dim // 2,
            "HALF_BLOCK": _half_block(head_dim),
            "ROWS": _REDUCE_ROWS,
        },
        grid=(-(-tokens // _REDUCE_ROWS), kv_heads, 2),
    )


def specializations(
    *, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int, dtype: str
) -> list[KernelSpec]:
    """Return the kernel of the forward and the two or three kernels of the backward."""
    sizes = (batch, seq_len, heads, kv_heads, head_dim, dtype)
    if hopper.serves(*sizes):
        return [forward_spec(*sizes), *hopper.specializations(batch, seq_len, heads, kv_heads)]
    return [
        forward_spec(*sizes),
        delta_spec(batch, seq_len, heads, head_dim, dtype),
        backward_spec(*sizes),
        reduce_spec(*sizes),
    ]


def _require_packed(op: str, qkv: Tensor, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int) -> None:
    require_shape(op, "qkv", qkv, (batch * seq_len, (heads + 2 * kv_heads) * head_dim))
    if head_dim % 2 or heads % kv_heads:
        found = f"for {heads} query heads and {kv_heads} key heads with head_dim {head_dim}"
        raise KernelArgumentError(
            op, "qkv", found, "use an even head_dim and a number of query heads that the number of key heads divides"
        )


def forward(qkv: Tensor, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return attention's output [T, N * D], and the natural log of the sum of exp(score) of each query, f32 [B, N, S].

    B batch, S seq_len, T = B * S tokens, N heads, Nkv kv_heads, D head_dim. qkv [T, (N + 2 * Nkv) * D]: query, key and
    value heads of each token, after the rotary embedding.
    """
    dtype = dtype_name("attention.forward", "qkv", qkv.dtype)
    spec = forward_spec(batch, seq_len, heads, kv_heads, head_dim, dtype)
    _require_packed(spec.op, qkv, batch, seq_len, heads, kv_heads, head_dim)
    output = torch.empty(batch * seq_len, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    log_sum_exp = torch.empty(batch, heads, seq_len, dtype=torch.float32, device=qkv.device)
    launch(spec, qkv, output, log_sum_exp)
    return output, log_sum_exp


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
    """Return the gradient [T, (N + 2 * Nkv) * D] of qkv before the rotary embedding; grad_output [T, N * D].

    S seq_len, T = batch * S tokens, N heads, Nkv kv_heads, D head_dim. qkv: the argument of `forward`. output,
    log_sum_exp: the results of `forward`. cos, sin: f32 [S, D/2].
    """
    sizes = (batch, seq_len, heads, kv_heads, head_dim)
    dtype = dtype_name("attention.backward", "qkv", qkv.dtype)
    spec = backward_spec(*sizes, dtype)
    _require_packed(spec.op, qkv, *sizes)
    require_shape(spec.op, "grad_output", grad_output, (batch * seq_len, heads * head_dim))
    require_shape(spec.op, "output", output, (batch * seq_len, heads * head_dim))
    require_shape(spec.op, "log_sum_exp", log_sum_exp, (batch, heads, seq_len))
    require_shape(spec.op, "cos", cos, (seq_len, head_dim // 2))
    require_shape(spec.op, "sin", sin, (seq_len, head_dim // 2))
    if hopper.serves(*sizes, dtype):
        return hopper.backward(grad_output, qkv, output, log_sum_exp, cos, sin, sizes[:4])
    delta = torch.empty_like(log_sum_exp)
    launch(delta_spec(batch, seq_len, heads, head_dim, dtype), grad_output, output, delta)
    grad_qkv, grad_key, grad_value = torch.empty_like(qkv), torch.empty_like(output), torch.empty_like(output)
    launch(spec, grad_output, qkv, log_sum_exp, delta, cos, sin, grad_qkv, grad_key, grad_value)
    launch(reduce_spec(*sizes, dtype), grad_key, grad_value, cos, sin, grad_qkv)
    return grad_qkv
