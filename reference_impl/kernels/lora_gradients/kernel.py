"""The gradients of a decoder block's LoRA factors and of its norms' gains, by two launches.

Legend: T tokens, H hidden, O outputs of qkv, R = 2r: the ranks of q and of v together, C chunks of the tokens, G norms,
P partial sums of a gain's gradient.

    grad_b = grad_qkv^T @ low_rank                                  [O, R]
    grad_a = round(grad_low_rank * rstd)^T @ residual               [R, H]
    grad_norms = sum of gain_partials [G, P, H] over P              [G, H]

Both products sum over the tokens and have few columns. So most of their time is spent reading grad_qkv and residual
once. In the first launch, a program handles one chunk of the tokens and one block of columns of grad_qkv or residual.
The second launch adds up the chunks. Every sum has a fixed order, there are no atomics, and C depends only on T and the
tiles. So results have the same bits in every run.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import KernelSpec, Pointer, dtype_name, kernel, launch, require_shape
from reference_impl.kernels.rms_norm.kernel import (
    REDUCE_COLUMNS,
    REDUCE_ROWS,
    REDUCE_WARPS,
    gain_partial_count,
    reduce_gain,
)


class Tiles(NamedTuple):
    """The sizes of tiles and chunks, which divide the work into programs.

    On an H100 both launches together take 29 us at 8192 tokens, 9 us at 2048 and 6 us at 512. A library's products,
    with separate kernels for the other operations, took 40, 18 and 13 us. Other tiles (32 to 128 rows, 64 to 256
    columns, 3 to 5 stages, 4 to 16 chunks) took up to a third longer.
    """

    rows: int = 64  # number of tokens in a tile, which one pass of the loop handles
    columns: int = 128
    warps: int = 4
    stages: int = 3
    most_chunks: int = 8
    chunk_rows: int = 128  # smallest number of tokens in a chunk of the tokens
    elements: int = 2048  # number of elements of the results that one program of the second launch computes


# Data type -> tiles. fp32 takes twice the shared memory and cannot use tensor cores, so its tiles are smaller.
_TILES = {"bf16": Tiles(), "fp16": Tiles(), "fp32": Tiles(rows=32, columns=64, stages=2)}
# `tl.dot` needs at least 16 columns. One program computes at most _MOST_RANKS columns (ranks) of a product.
# Further programs compute the other columns.
_FEWEST_RANKS = 16
_MOST_RANKS = 64


@kernel("rstd")
def _partials_kernel(
    grad_qkv: tl.tensor,
    low_rank: tl.tensor,
    grad_low_rank: tl.tensor,
    rstd: tl.tensor,
    residual: tl.tensor,
    partials: tl.tensor,
    T: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    RANKS: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    OUTPUT_BLOCKS: tl.constexpr = (OUTPUTS + COLUMNS - 1) // COLUMNS
    RANK_BLOCKS: tl.constexpr = (RANKS + RANK_BLOCK - 1) // RANK_BLOCK
    block = tl.program_id(0) // RANK_BLOCKS
    of_b = block < OUTPUT_BLOCKS
    # Choose the operands of one of the two products. Both products use the same loop.
    wide = tl.where(of_b, grad_qkv, residual)
    narrow = tl.where(of_b, low_rank, grad_low_rank)
    width = tl.where(of_b, OUTPUTS, HIDDEN)
    column = tl.where(of_b, block, block - OUTPUT_BLOCKS) * COLUMNS + tl.arange(0, COLUMNS)
    rank = tl.program_id(0) % RANK_BLOCKS * RANK_BLOCK + tl.arange(0, RANK_BLOCK)
    chunk = tl.program_id(1)
    first = chunk * CHUNK
    wide += first.to(tl.int64) * width
    narrow += first.to(tl.int64) * RANKS
    rstd += first
    lane = tl.arange(0, ROWS)
    total = tl.zeros([COLUMNS, RANK_BLOCK], tl.float32)
    for start in range(0, CHUNK, ROWS):
        row = start + lane
        inside = first + row < T
        wide_mask = inside[:, None] & (column < width)[None, :]
        narrow_mask = inside[:, None] & (rank < RANKS)[None, :]
        tile = tl.load(wide + row[:, None] * width + column[None, :], mask=wide_mask, other=0.0)
        factor = tl.load(narrow + row[:, None] * RANKS + rank[None, :], mask=narrow_mask, other=0.0)
        # Multiply by 1 in programs for grad_b, because only the formula of grad_a contains the factor rstd.
        scale = tl.load(rstd + row, mask=inside & (block >= OUTPUT_BLOCKS), other=1.0)
        scaled = (factor.to(tl.float32) * scale[:, None]).to(factor.dtype)
        total = tl.dot(tl.trans(tile), scaled, total, input_precision="ieee")
    partials += chunk.to(tl.int64) * (OUTPUTS + HIDDEN) * RANKS
    mask = (column < width)[:, None] & (rank < RANKS)[None, :]
    if of_b:
        tl.store(partials + column[:, None] * RANKS + rank[None, :], total, mask=mask)
    else:
        partials += OUTPUTS * RANKS
        tl.store(partials + rank[:, None] * HIDDEN + column[None, :], tl.trans(total), mask=tl.trans(mask))


@kernel("grad_norms")
def _reduce_kernel(
    partials: tl.tensor,
    gain_partials: tl.tensor,
    grad_b: tl.tensor,
    grad_a: tl.tensor,
    grad_norms: tl.tensor,
    CHUNKS: tl.constexpr,
    B_SIZE: tl.constexpr,
    A_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    P: tl.constexpr,
    HIDDEN: tl.constexpr,
    GAIN_ROWS: tl.constexpr,
    GAIN_COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    SIZE: tl.constexpr = B_SIZE + A_SIZE
    PRODUCT_BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    GAIN_BLOCKS: tl.constexpr = (HIDDEN + GAIN_COLUMNS - 1) // GAIN_COLUMNS
    program = tl.program_id(0)
    if program < PRODUCT_BLOCKS:
        index = program * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for chunk in tl.static_range(CHUNKS):
            total += tl.load(partials + chunk * SIZE + index, mask=index < SIZE, other=0.0)
        tl.store(grad_b + index, total, mask=index < B_SIZE)
        tl.store(grad_a + (index - B_SIZE), total, mask=(index >= B_SIZE) & (index < SIZE))
    else:
        norm = (program - PRODUCT_BLOCKS) // GAIN_BLOCKS
        block = (program - PRODUCT_BLOCKS) % GAIN_BLOCKS
        reduce_gain(
            gain_partials + norm * P * HIDDEN, grad_norms + norm * HIDDEN, block, P, HIDDEN, GAIN_ROWS, GAIN_COLUMNS
        )


def _chunk(tokens: int, tiles: Tiles) -> int:
    """Return the number of tokens in a chunk, which is a multiple of the tile's rows."""
    least = max(tiles.chunk_rows, triton.cdiv(tokens, tiles.most_chunks))
    return int(triton.cdiv(least, tiles.rows)) * tiles.rows


@functools.cache
def partials_spec(
    tokens: int, outputs: int, hidden: int, ranks: int, dtype: str, tiles: Tiles | None = None
) -> KernelSpec:
    """Return the spec (description) of the first kernel. It writes a tensor of partial sums, f32 [chunks, outputs *
    ranks + ranks * hidden]. Each row has the partial sums of grad_b and then those of grad_a."""
    tiles = tiles or _TILES[dtype]
    chunk = _chunk(tokens, tiles)
    rank_block = min(_MOST_RANKS, max(_FEWEST_RANKS, triton.next_power_of_2(ranks)))
    blocks = triton.cdiv(outputs, tiles.columns) + triton.cdiv(hidden, tiles.columns)
    return KernelSpec(
        op="lora_gradients.partials",
        shape=(tokens, outputs, hidden, ranks),
        dtype=dtype,
        constants=(("rows", tiles.rows), ("columns", tiles.columns), ("chunk", chunk)),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        function=_partials_kernel,
        pointers=(
            *(Pointer(name, dtype) for name in ("grad_qkv", "low_rank", "grad_low_rank")),
            Pointer("rstd", "fp32", aligned=False),
            Pointer("residual", dtype),
            Pointer("partials", "fp32"),
        ),
        constexprs={
            "T": tokens,
            "OUTPUTS": outputs,
            "HIDDEN": hidden,
            "RANKS": ranks,
            "RANK_BLOCK": rank_block,
            "ROWS": tiles.rows,
            "COLUMNS": tiles.columns,
            "CHUNK": chunk,
        },
        grid=(blocks * triton.cdiv(ranks, rank_block), triton.cdiv(tokens, chunk)),
    )


@functools.cache
def reduce_spec(
    chunks: int, outputs: int, hidden: int, ranks: int, norms: int, gain_partials: int, elements: int
) -> KernelSpec:
    """Return the spec (description) of the second kernel. It sums the chunks of both products, and gain_partials
    [norms, P, hidden] over P."""
    of_b, of_a = outputs * ranks, ranks * hidden
    programs = triton.cdiv(of_b + of_a, elements) + norms * triton.cdiv(hidden, REDUCE_COLUMNS)
    return KernelSpec(
        op="lora_gradients.reduce",
        shape=(chunks, outputs, hidden, ranks, norms, gain_partials),
        dtype="fp32",
        constants=(("elements", elements),),
        num_warps=REDUCE_WARPS,
        num_stages=1,
        function=_reduce_kernel,
        pointers=(
            *(Pointer(name, "fp32") for name in ("partials", "gain_partials", "grad_b", "grad_a")),
            Pointer("grad_norms", "fp32", aligned=False),
        ),
        constexprs={
            "CHUNKS": chunks,
            "B_SIZE": of_b,
            "A_SIZE": of_a,
            "BLOCK": elements,
            "P": gain_partials,
            "HIDDEN": hidden,
            "GAIN_ROWS": REDUCE_ROWS,
            "GAIN_COLUMNS": REDUCE_COLUMNS,
        },
        grid=(programs,),
    )


def _specs(
    sizes: tuple[int, int, int, int], norms: int, gain_partials: int, dtype: str, tiles: Tiles | None
) -> tuple[KernelSpec, KernelSpec]:
    first = partials_spec(*sizes, dtype, tiles)
    _, outputs, hidden, ranks = sizes
    elements = (tiles or _TILES[dtype]).elements
    return first, reduce_spec(first.grid[1], outputs, hidden, ranks, norms, gain_partials, elements)


def specializations(*, tokens: int, outputs: int, hidden: int, ranks: int, dtype: str) -> list[KernelSpec]:
    """Return the kernels of both launches of a decoder block, which has two norms, for data of `dtype`."""
    return [*_specs((tokens, outputs, hidden, ranks), 2, gain_partial_count(tokens), dtype, None)]


def write(
    grad_qkv: Tensor,
    low_rank: Tensor,
    grad_low_rank: Tensor,
    rstd: Tensor,
    residual: Tensor,
    gain_partials: Tensor,
    grad_b: Tensor,
    grad_a: Tensor,
    grad_norms: Tensor,
    tiles: Tiles | None = None,
) -> None:
    """Write grad_b f32 [O, R], grad_a f32 [R, H] and grad_norms f32 [G, H].

    grad_qkv [T, O]; low_rank, grad_low_rank [T, R]; rstd f32 [T]; residual [T, H]; gain_partials f32 [G, P, H].
    `tiles`: None means the tiles in `_TILES` for the data type.
    """
    (tokens, outputs), ranks, hidden = grad_qkv.shape, low_rank.shape[1], residual.shape[1]
    norms, count, _ = gain_partials.shape
    dtype = dtype_name("lora_gradients", "grad_qkv", grad_qkv.dtype)
    first, second = _specs((tokens, outputs, hidden, ranks), norms, count, dtype, tiles)
    shapes = {
        "low_rank": (low_rank, (tokens, ranks)),
        "grad_low_rank": (grad_low_rank, (tokens, ranks)),
        "rstd": (rstd, (tokens,)),
        "residual": (residual, (tokens, hidden)),
        "gain_partials": (gain_partials, (norms, count, hidden)),
        "grad_b": (grad_b, (outputs, ranks)),
        "grad_a": (grad_a, (ranks, hidden)),
        "grad_norms": (grad_norms, (norms, hidden)),
    }
    for name, (tensor, shape) in shapes.items():
        require_shape("lora_gradients", name, tensor, shape)
    partials = torch.empty(first.grid[1], (outputs + hidden) * ranks, dtype=torch.float32, device=grad_qkv.device)
    launch(first, grad_qkv, low_rank, grad_low_rank, rstd, residual, partials)
    launch(second, partials, gain_partials, grad_b, grad_a, grad_norms)
