"""Quantize the rows of a matrix to FP8, each with its own scale. One program reads a row of C columns once.

    scale = the smallest power of two for which amax / scale <= 448,   data = round(x / scale)     e4m3

amax is the largest absolute value of the row. Kernels that write FP8 rows call `row_scale`, explained in `naive.py`.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import KernelSpec, Pointer, device_function, dtype_name, kernel, launch

# Number of elements of a row that each thread of a kernel holds: two 16-byte loads of bf16.
_ELEMENTS_PER_THREAD = 16


@device_function
def row_scale(amax: tl.tensor) -> tl.tensor:
    """Return the scale of a row, which is a power of two, and the inverse of the scale.

    amax: the largest absolute value of the row, in fp32. If it is infinite or NaN, the scale is NaN.
    """
    bits = amax.to(tl.int32, bitcast=True)
    exponent = tl.minimum(tl.maximum(((bits + 0x1FFFFF) >> 23) - 8, 1), 253)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return tl.where((bits >> 23) < 255, scale, float("nan")), inverse


@kernel("scale")
def _quantize_kernel(
    x: tl.tensor, data: tl.tensor, scale: tl.tensor, C: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
) -> None:
    begin(PDL)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < C
    offset = row.to(tl.int64) * C + column
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    s, inverse = row_scale(tl.max(tl.abs(value), axis=0))
    tl.store(data + offset, (value * inverse).to(data.dtype.element_ty), mask=inside)
    tl.store(scale + row, s)


def row_warps(block: int) -> int:
    """Return the number of warps for a program that holds `block` elements of a row."""
    return max(1, min(16, block // (32 * _ELEMENTS_PER_THREAD)))


@functools.cache
def quantize_spec(rows: int, cols: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `quantize` launches for x [rows, cols] of `dtype`."""
    block = triton.next_power_of_2(cols)
    return KernelSpec(
        op="fp8_rows.quantize",
        shape=(rows, cols),
        dtype=dtype,
        constants=(),
        num_warps=row_warps(block),
        num_stages=1,
        function=_quantize_kernel,
        pointers=(Pointer("x", dtype), Pointer("data", "fp8e4nv"), Pointer("scale", "fp32", aligned=False)),
        constexprs={"C": cols, "BLOCK": block},
        grid=(rows,),
    )


def specializations(*, rows: int, cols: int, dtype: str) -> list[KernelSpec]:
    """Return the kernel of `quantize` for x [rows, cols] of `dtype`."""
    return [quantize_spec(rows, cols, dtype)]


def empty_rows(rows: int, cols: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return uninitialized data e4m3 [rows, cols] and scale f32 [rows] on the device of `like`."""
    data = torch.empty(rows, cols, dtype=torch.float8_e4m3fn, device=like.device)
    return data, torch.empty(rows, dtype=torch.float32, device=like.device)


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [rows, cols] in FP8: data e4m3 [rows, cols] and scale f32 [rows]."""
    rows, cols = x.shape
    data, scale = empty_rows(rows, cols, x)
    launch(quantize_spec(rows, cols, dtype_name("fp8_rows.quantize", "x", x.dtype)), x, data, scale)
    return data, scale
