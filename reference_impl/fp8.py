"""Products in FP8: both operands e4m3 (the logits' gradient e5m2), scaled by powers of two, summed in fp32.

    product = round(scale_a[m] * scale_b[n] * sum over k of a[m, k] * b[n, k])

M, N rows of the operands, K their summed columns. A scale belongs to a row, so that the kernel that makes a row finds
it there, and nothing waits for the host. e4m3 for gradients, too: with a scale a row their range is that of one token's
gradient, of which e4m3 keeps 2^-16, and its third bit of fraction halves the rounding of e5m2. On a CUDA device the
library multiplies; elsewhere its twin does, in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from reference_impl import ops
from reference_impl.errors import ReferenceImplError
from reference_impl.kernels.fp8_rows.naive import power_of_two_scale
from reference_impl.kernels.nf4.naive import BLOCK
from reference_impl.nf4 import FrozenMatrix, QuantizedMatrix

# Hopper's tensor cores add FP8 products with about 14 bits; without fast accumulation the library moves these sums into
# fp32 every 128 products. Against exact sums of the same operands a block's products err by 0.2 % so, at 17,920 terms
# by 0.4 %, where rounding the operands errs by 3.7 %: the blocks' products, of at most 17,920 terms, are accumulated
# fast (an eighth of their time). The head's input gradient sums 151,936 terms, and is not.
MOST_TERMS_FAST = 32768


@dataclass(frozen=True)
class ScaledRows:
    """A matrix in FP8: the value of an element is data * scale of its row."""

    data: Tensor  # e4m3 or e5m2 [rows, cols], the summed dimension last
    scale: Tensor  # f32 [rows]; 0-d: of all rows, beside another of one scale alone

    @classmethod
    def of(cls, x: Tensor) -> ScaledRows:
        """x [rows, cols], read once more: for what no kernel of ours makes row by row."""
        return cls(*ops.fp8_quantize_rows(x))


@dataclass(frozen=True)
class Fp8Matrix:
    """A frozen NF4 weight [outputs, inputs] that is made FP8 at each use, as it is and transposed.

    |code| <= 1, so a row's largest absmax bounds the row, and scales are known when the weight is loaded.
    """

    source: QuantizedMatrix
    row_scale: Tensor  # f32 [outputs]
    row_inverse: Tensor
    column_scale: Tensor  # f32 [inputs]
    column_inverse: Tensor

    @classmethod
    def of(cls, matrix: FrozenMatrix) -> Fp8Matrix:
        """Raises `ReferenceImplError` for a matrix that is not NF4, or whose rows are no whole blocks."""
        if not isinstance(matrix, QuantizedMatrix):
            raise ReferenceImplError("precision", "fp8 with weights that are not nf4", "choose weights='nf4'")
        if matrix.cols % BLOCK:
            raise ReferenceImplError("precision", f"fp8 with {matrix.cols} inputs", f"needs a multiple of {BLOCK}")
        largest = matrix.absmax.view(matrix.rows, matrix.cols // BLOCK)
        row_scale, row_inverse = power_of_two_scale(largest.amax(dim=1))
        column = (each.repeat_interleave(BLOCK) for each in power_of_two_scale(largest.amax(dim=0)))
        return cls(matrix, row_scale, row_inverse, *column)

    def rows(self) -> ScaledRows:
        """[outputs, inputs]: for x @ W^T."""
        source = self.source
        return ScaledRows(ops.fp8_from_nf4(source.codes, source.absmax, self.row_inverse, source.cols), self.row_scale)

    def transposed(self) -> ScaledRows:
        """[inputs, outputs]: for grad @ W."""
        source = self.source
        data = ops.fp8_from_nf4_transposed(source.codes, source.absmax, self.column_inverse, source.rows)
        return ScaledRows(data, self.column_scale)


class Fp8Products:
    """Multiplies in FP8 and counts what it multiplied. There is no other path: what cannot run in FP8 raises."""

    def __init__(self, dtype: torch.dtype, most_terms_fast: int = MOST_TERMS_FAST) -> None:
        self.dtype = dtype
        self.most_terms_fast = most_terms_fast
        self.count = 0

    def multiply(self, a: ScaledRows, b: ScaledRows, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """a [M, K], b [N, K] (+ bias [N]) -> a @ b^T [M, N] in the compute dtype, in ``out`` if given."""
        self.count += 1
        if a.data.device.type != "cuda":
            return _twin(a, b, bias, self.dtype, out)
        one = a.scale.dim() == 0
        return torch._scaled_mm(
            a.data,
            b.data.t(),
            a.scale if one else a.scale[:, None],
            b.scale if one else b.scale[None, :],
            bias=bias,
            out_dtype=self.dtype,
            use_fast_accum=a.data.shape[1] <= self.most_terms_fast,
            **({} if out is None else {"out": out}),
        )


def _twin(a: ScaledRows, b: ScaledRows, bias: Tensor | None, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    """The same product by torch's fp32 one."""
    product = _float(a.data) @ _float(b.data).t()
    product = product * (a.scale if a.scale.dim() == 0 else a.scale[:, None]) * b.scale
    if bias is not None:
        product = product + bias
    return product.to(dtype) if out is None else out.copy_(product)


def _float(data: Tensor) -> Tensor:
    """e4m3 or e5m2 on a CPU -> f32, the bits of ``data.float()``, which takes four times as long as looking them up."""
    return _values(data.dtype).index_select(0, data.view(torch.uint8).flatten().int()).view(data.shape)


@cache
def _values(dtype: torch.dtype) -> Tensor:
    """What each code of a type of eight bits stands for, in the order of codes.

    Made outside of any mode: it is kept for the process, and a step on tensors without values may be the first to ask.
    """
    with _disable_current_modes():
        return torch.arange(256, dtype=torch.uint8).view(dtype).float()
