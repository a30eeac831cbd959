"""Convert an NF4 weight (4-bit codes and block scales) to e4m3, also transposed, without a dense copy in between.

Legend: R rows, C columns of the weight (C a multiple of 64). 64 elements of a row are a block; a byte has 2 codes.

    rows        out[r, c] = round(codebook[code] * absmax[block] * inverse[r])          e4m3 [R, C]
    transposed  out[c, r] = round(codebook[code] * absmax[block] * inverse[c])          e4m3 [C, R]

torch's FP8 product sums over the last dimension of both operands. So the product for the input gradient needs the
transposed weight. `inverse` contains the inverses of FP8 scales, which are powers of two. `rows` reads the codes as
`kernels/nf4` does. A program of `transposed` handles the 64 columns of one block in 128 rows. These become 64 rows of
128 bytes in the output, which are whole cache lines.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.nf4.kernel import _codebook
from reference_impl.kernels.registry import KernelArgumentError, KernelSpec, Pointer, kernel, launch, require_shape

BLOCK_ELEMENTS = 64
_WORD_ELEMENTS = 8
_NUM_WARPS = 4
_WORDS = 4 * 32 * _NUM_WARPS  # number of words that a program decodes; each thread decodes four words
_TILE_ROWS = 128


@kernel()
def _rows_kernel(
    words: tl.tensor,
    absmax: tl.tensor,
    inverse: tl.tensor,
    out: tl.tensor,
    WORD_COUNT: tl.constexpr,
    WORDS_A_ROW: tl.constexpr,
    WORDS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    codebook = _codebook()
    index = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    inside = index < WORD_COUNT
    word = tl.load(words + index, mask=inside, other=0)
    factor = tl.load(absmax + index // 8, mask=inside, other=0.0)
    factor *= tl.load(inverse + index // WORDS_A_ROW, mask=inside, other=0.0)
    element = tl.arange(0, 8)
    # A word is little-endian, and the high nibble of each byte contains the first element. Therefore element e of the
    # word is nibble e ^ 1, counted from the lowest bits.
    code = (word[:, None] >> (4 * (element ^ 1))[None, :]) & 15
    value = tl.reshape(tl.gather(codebook, tl.reshape(code, [WORDS * 8]), 0), [WORDS, 8]) * factor[:, None]
    pointers = out + index[:, None] * 8 + element[None, :]
    tl.store(pointers, value.to(out.dtype.element_ty), mask=inside[:, None])


@kernel()
def _transposed_kernel(
    words: tl.tensor,
    absmax: tl.tensor,
    inverse: tl.tensor,
    out: tl.tensor,
    R: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    codebook = _codebook()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < R
    block = tl.program_id(1)
    word_index = tl.arange(0, 8)
    offset = row[:, None] * (C // 8) + block * 8 + word_index[None, :]
    word = tl.load(words + offset, mask=inside[:, None], other=0)
    factor = tl.load(absmax + row * (C // 64) + block, mask=inside, other=0.0)
    element = tl.arange(0, 8)
    code = (word[:, :, None] >> (4 * (element ^ 1))[None, None, :]) & 15
    value = tl.reshape(tl.gather(codebook, tl.reshape(code, [ROWS * 64]), 0), [ROWS, 64])
    column = block * 64 + tl.arange(0, 64)
    scaled = value * (factor[:, None] * tl.load(inverse + column)[None, :])
    turned = tl.trans(scaled.to(out.dtype.element_ty))
    tl.store(out + column[:, None] * R + row[None, :], turned, mask=inside[None, :])


def _spec(
    op: str, function: Any, rows: int, cols: int, constexprs: dict[str, int | float | bool | str], grid: tuple[int, ...]
) -> KernelSpec:
    if cols % BLOCK_ELEMENTS:
        raise KernelArgumentError(op, "cols", str(cols), f"pass a multiple of {BLOCK_ELEMENTS} columns")
    return KernelSpec(
        op=op,
        shape=(rows, cols),
        dtype="fp8e4nv",
        constants=(),
        num_warps=_NUM_WARPS,
        num_stages=1,
        function=function,
        pointers=(
            Pointer("words", "i32"),
            Pointer("absmax", "fp32"),
            Pointer("inverse", "fp32"),
            Pointer("out", "fp8e4nv"),
        ),
        constexprs=constexprs,
        grid=grid,
        enable_fp_fusion=False,
    )


@functools.cache
def rows_spec(rows: int, cols: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `rows` launches for a weight [rows, cols]."""
    word_count = rows * cols // _WORD_ELEMENTS
    constexprs = {"WORD_COUNT": word_count, "WORDS_A_ROW": cols // _WORD_ELEMENTS, "WORDS": _WORDS}
    return _spec("fp8_nf4.rows", _rows_kernel, rows, cols, {**constexprs}, (-(-word_count // _WORDS),))


@functools.cache
def transposed_spec(rows: int, cols: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `transposed` launches for a weight [rows, cols]."""
    grid = (-(-rows // _TILE_ROWS), cols // BLOCK_ELEMENTS)
    constexprs = {"R": rows, "C": cols, "ROWS": _TILE_ROWS}
    return _spec("fp8_nf4.transposed", _transposed_kernel, rows, cols, {**constexprs}, grid)


def specializations(*, rows: int, cols: int) -> list[KernelSpec]:
    """Return the kernels of `rows` and `transposed` for a weight [rows, cols]."""
    return [rows_spec(rows, cols), transposed_spec(rows, cols)]


def rows(codes: Tensor, absmax: Tensor, inverse: Tensor, columns: int) -> Tensor:
    """Return round(weight[r, c] * inverse[r]), e4m3 [R, C], of the weight with codes u8 [R*C/2] and absmax f32
    [R*C/64]; inverse f32 [R]; R rows, C columns."""
    spec = rows_spec(inverse.numel(), columns)
    return _launched(spec, codes, absmax, inverse, (inverse.numel(), columns))


def transposed(codes: Tensor, absmax: Tensor, inverse: Tensor, row_count: int) -> Tensor:
    """Return round(weight[r, c] * inverse[c]) at [c, r], e4m3 [C, R], of the weight with codes u8 [R*C/2] and absmax
    f32 [R*C/64]; inverse f32 [C]; R rows, C columns."""
    spec = transposed_spec(row_count, inverse.numel())
    return _launched(spec, codes, absmax, inverse, (inverse.numel(), row_count))


def _launched(spec: KernelSpec, codes: Tensor, absmax: Tensor, inverse: Tensor, shape: tuple[int, int]) -> Tensor:
    elements = shape[0] * shape[1]
    require_shape(spec.op, "codes", codes, (elements // 2,))
    require_shape(spec.op, "absmax", absmax, (elements // BLOCK_ELEMENTS,))
    out = torch.empty(shape, dtype=torch.float8_e4m3fn, device=codes.device)
    launch(spec, codes.view(torch.int32), absmax, inverse, out)
    return out
