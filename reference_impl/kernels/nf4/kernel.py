"""NF4 dequantization: convert 4-bit codes and the scales of blocks to a dense matrix.

Legend: R rows, C columns of the weight. 64 elements are a block, whose scale is `absmax`, the largest absolute value in
the block. A byte has 2 codes, the first in the high nibble.

    weight[i] = round(codebook[code[i]] * absmax[i // 64])       one fp32 product, one rounding to the output's dtype

Codes are read as 32-bit words of eight elements. For each word, a thread stores eight outputs of 2 bytes, together 16
bytes. The words that a warp reads are contiguous, and so are the outputs that it stores. The 16 values of the codebook
are looked up in shared memory. They are in 16 different banks, so no lookup waits for another. (Without a table, 15
selections for each element would take longer than reading the codes and writing the results.)
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import (
    KernelArgumentError,
    KernelSpec,
    Pointer,
    device_function,
    dtype_name,
    kernel,
    launch,
    require_shape,
)

BLOCK_ELEMENTS = 64
"""The number of elements that share one fp32 absmax."""
NESTED_BLOCKS = 256
"""The number of absmax values that share one fp32 scale under double quantization."""

_WORD_ELEMENTS = 8
# Each thread decodes one word at a time and stores the word's results itself, so that no data moves between threads.
_NUM_WARPS = 4
_WORDS = 32 * _NUM_WARPS
_CHUNKS = (
    # Number of words that a thread loads before it decodes the first. Kernels have one variable for each.
    4
)


@device_function
def _codebook() -> tl.tensor:
    """Return the 16 NF4 values in fp32, in the order of their codes (from the QLoRA paper, appendix E)."""
    i = tl.arange(0, 16)
    value = tl.where(i == 0, -1.0, 0.0)
    value = tl.where(i == 1, -0.6961928009986877, value)
    value = tl.where(i == 2, -0.5250730514526367, value)
    value = tl.where(i == 3, -0.39491748809814453, value)
    value = tl.where(i == 4, -0.28444138169288635, value)
    value = tl.where(i == 5, -0.18477343022823334, value)
    value = tl.where(i == 6, -0.09105003625154495, value)
    value = tl.where(i == 8, 0.07958029955625534, value)
    value = tl.where(i == 9, 0.16093020141124725, value)
    value = tl.where(i == 10, 0.24611230194568634, value)
    value = tl.where(i == 11, 0.33791524171829224, value)
    value = tl.where(i == 12, 0.44070982933044434, value)
    value = tl.where(i == 13, 0.5626170039176941, value)
    value = tl.where(i == 14, 0.7229568362236023, value)
    return tl.where(i == 15, 1.0, value)


@device_function
def _load_words(words: tl.tensor, index: tl.tensor, WORD_COUNT: tl.constexpr) -> tl.tensor:
    return tl.load(words + index, mask=index < WORD_COUNT, other=0)


@device_function
def _load_absmax(absmax: tl.tensor, index: tl.tensor, WORD_COUNT: tl.constexpr) -> tl.tensor:
    return tl.load(absmax + index // 8, mask=index < WORD_COUNT, other=0.0)


@device_function
def _load_absmax_double(
    codes: tl.tensor,
    levels: tl.tensor,
    scales: tl.tensor,
    offset: tl.tensor,
    index: tl.tensor,
    WORD_COUNT: tl.constexpr,
) -> tl.tensor:
    block = index // 8
    code = tl.load(codes + block, mask=index < WORD_COUNT, other=0).to(tl.int32)
    scale = tl.load(scales + block // 256, mask=index < WORD_COUNT, other=0.0)
    return tl.load(levels + code) * scale + offset


@device_function
def _decode_and_store(
    out: tl.tensor, codebook: tl.tensor, words: tl.tensor, absmax: tl.tensor, index: tl.tensor, WORD_COUNT: tl.constexpr
) -> None:
    WORDS: tl.constexpr = words.shape[0]
    element = tl.arange(0, 8)
    # A word is little-endian, and the high nibble of each byte contains the first element. Therefore element e of the
    # word is nibble e ^ 1, counted from the lowest bits.
    code = (words[:, None] >> (4 * (element ^ 1))[None, :]) & 15
    value = tl.reshape(tl.gather(codebook, tl.reshape(code, [WORDS * 8]), 0), [WORDS, 8]) * absmax[:, None]
    pointers = out + index[:, None] * 8 + element[None, :]
    tl.store(pointers, value.to(out.dtype.element_ty), mask=(index < WORD_COUNT)[:, None])


@kernel()
def _dequantize_kernel(
    words: tl.tensor,
    absmax: tl.tensor,
    out: tl.tensor,
    WORD_COUNT: tl.constexpr,
    WORDS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    codebook = _codebook()
    i0 = tl.program_id(0) * (4 * WORDS) + tl.arange(0, WORDS)
    i1 = i0 + WORDS
    i2 = i1 + WORDS
    i3 = i2 + WORDS
    w0 = _load_words(words, i0, WORD_COUNT)
    w1 = _load_words(words, i1, WORD_COUNT)
    w2 = _load_words(words, i2, WORD_COUNT)
    w3 = _load_words(words, i3, WORD_COUNT)
    a0 = _load_absmax(absmax, i0, WORD_COUNT)
    a1 = _load_absmax(absmax, i1, WORD_COUNT)
    a2 = _load_absmax(absmax, i2, WORD_COUNT)
    a3 = _load_absmax(absmax, i3, WORD_COUNT)
    _decode_and_store(out, codebook, w0, a0, i0, WORD_COUNT)
    _decode_and_store(out, codebook, w1, a1, i1, WORD_COUNT)
    _decode_and_store(out, codebook, w2, a2, i2, WORD_COUNT)
    _decode_and_store(out, codebook, w3, a3, i3, WORD_COUNT)


@kernel("offset")
def _dequantize_double_kernel(
    words: tl.tensor,
    codes: tl.tensor,
    levels: tl.tensor,
    scales: tl.tensor,
    offset: tl.tensor,
    out: tl.tensor,
    WORD_COUNT: tl.constexpr,
    WORDS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    codebook = _codebook()
    mean = tl.load(offset)
    i0 = tl.program_id(0) * (4 * WORDS) + tl.arange(0, WORDS)
    i1 = i0 + WORDS
    i2 = i1 + WORDS
    i3 = i2 + WORDS
    w0 = _load_words(words, i0, WORD_COUNT)
    w1 = _load_words(words, i1, WORD_COUNT)
    w2 = _load_words(words, i2, WORD_COUNT)
    w3 = _load_words(words, i3, WORD_COUNT)
    a0 = _load_absmax_double(codes, levels, scales, mean, i0, WORD_COUNT)
    a1 = _load_absmax_double(codes, levels, scales, mean, i1, WORD_COUNT)
    a2 = _load_absmax_double(codes, levels, scales, mean, i2, WORD_COUNT)
    a3 = _load_absmax_double(codes, levels, scales, mean, i3, WORD_COUNT)
    _decode_and_store(out, codebook, w0, a0, i0, WORD_COUNT)
    _decode_and_store(out, codebook, w1, a1, i1, WORD_COUNT)
    _decode_and_store(out, codebook, w2, a2, i2, WORD_COUNT)
    _decode_and_store(out, codebook, w3, a3, i3, WORD_COUNT)


def _spec(op: str, function: Any, pointers: tuple[Pointer, ...], rows: int, cols: int, dtype: str) -> KernelSpec:
    if rows * cols % BLOCK_ELEMENTS:
        raise KernelArgumentError(op, "rows, cols", f"{rows} x {cols}", f"pass a multiple of {BLOCK_ELEMENTS} elements")
    word_count = rows * cols // _WORD_ELEMENTS
    return KernelSpec(
        op=op,
        shape=(rows, cols),
        dtype=dtype,
        constants=(),
        num_warps=_NUM_WARPS,
        num_stages=1,
        function=function,
        pointers=pointers,
        constexprs={"WORD_COUNT": word_count, "WORDS": _WORDS},
        grid=(-(-word_count // (_CHUNKS * _WORDS)),),
        # Do not fuse the multiplication and the addition in level * scale + offset. torch and bitsandbytes round after
        # each of the two.
        enable_fp_fusion=False,
    )


@functools.cache
def dequantize_spec(rows: int, cols: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `dequantize` launches for a [rows, cols] output of `dtype`."""
    pointers = (Pointer("words", "i32"), Pointer("absmax", "fp32"), Pointer("out", dtype))
    return _spec("nf4.dequantize", _dequantize_kernel, pointers, rows, cols, dtype)


@functools.cache
def dequantize_double_spec(rows: int, cols: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `dequantize_double` launches for a [rows, cols] output of
    `dtype`."""
    pointers = (
        Pointer("words", "i32"),
        Pointer("codes", "u8"),
        Pointer("levels", "fp32"),
        Pointer("scales", "fp32"),
        Pointer("offset", "fp32", aligned=False),
        Pointer("out", dtype),
    )
    return _spec("nf4.dequantize_double", _dequantize_double_kernel, pointers, rows, cols, dtype)


def specializations(*, rows: int, cols: int, dtype: str, double: bool = False) -> list[KernelSpec]:
    """Return the kernel that dequantizes a [rows, cols] weight to `dtype`, with plain or doubly quantized scales."""
    return [(dequantize_double_spec if double else dequantize_spec)(rows, cols, dtype)]


def _output(op: str, out: Tensor | None, codes: Tensor, rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    require_shape(op, "codes", codes, (rows * cols // 2,))
    if out is None:
        return torch.empty(rows, cols, dtype=dtype, device=codes.device)
    require_shape(op, "out", out, (rows, cols))
    return out


def dequantize(
    codes: Tensor, absmax: Tensor, rows: int, cols: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """Return the weight [R, C] in `dtype`, in `out` if given; codes u8 [R*C/2], absmax f32 [R*C/64], R rows, C cols."""
    spec = dequantize_spec(rows, cols, dtype_name("nf4.dequantize", "dtype", dtype))
    out = _output(spec.op, out, codes, rows, cols, dtype)
    require_shape(spec.op, "absmax", absmax, (rows * cols // BLOCK_ELEMENTS,))
    launch(spec, codes.view(torch.int32), absmax, out)
    return out


def dequantize_double(
    codes: Tensor,
    absmax_codes: Tensor,
    absmax_map: Tensor,
    nested_absmax: Tensor,
    offset: Tensor,
    rows: int,
    cols: int,
    dtype: torch.dtype,
) -> Tensor:
    """Dequantize with quantized scales: absmax[j] = absmax_map[absmax_codes[j]] * nested_absmax[j // 256] + offset.

    absmax_codes u8 [R*C/64], absmax_map f32 [256], nested_absmax f32 [ceil(R*C/64/256)], offset f32 0-d (R rows, C
    cols).
    """
    spec = dequantize_double_spec(rows, cols, dtype_name("nf4.dequantize_double", "dtype", dtype))
    blocks = rows * cols // BLOCK_ELEMENTS
    out = _output(spec.op, None, codes, rows, cols, dtype)
    require_shape(spec.op, "absmax_codes", absmax_codes, (blocks,))
    require_shape(spec.op, "absmax_map", absmax_map, (256,))
    require_shape(spec.op, "nested_absmax", nested_absmax, (-(-blocks // NESTED_BLOCKS),))
    require_shape(spec.op, "offset", offset, ())
    launch(spec, codes.view(torch.int32), absmax_codes, absmax_map, nested_absmax, offset, out)
    return out
