"""Products in FP8. Operands are e4m3 (the logits' gradient is e5m2), scaled by powers of two. Sums are in fp32.

    product[m, n] = round(scale_a[m] * scale_b[n] * sum over k of a[m, k] * b[n, k])

M, N: rows of the operands a, b. K: their columns, which are summed over. Each row has its own scale. The kernel that
writes a row computes the scale from the row itself, or from an upper bound of the row's values that is known in
advance. Therefore nothing waits for the host. Gradients are e4m3, too, except the logits' gradient: a row holds the
gradient of one token, and e4m3 represents values down to 2^-16 of the row's largest value. e4m3 has three bits of
fraction and e5m2 two, so the rounding error of e4m3 is half as large. On a CUDA device, torch's scaled product or
`kernels/fp8_products` computes the products. On other devices, plain torch computes the same products in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl import ops
from reference_impl.errors import ReferenceImplError
from reference_impl.kernels.fp8_rows.naive import power_of_two_scale
from reference_impl.kernels.nf4 import naive as nf4
from reference_impl.kernels.nf4.naive import BLOCK
from reference_impl.nf4 import FrozenMatrix, QuantizedMatrix

# Largest number of terms of a sum for which fast accumulation is used. Hopper's tensor cores add FP8 products with
# about 14 bits. Without fast accumulation, the library adds these sums to fp32 sums after every 128 products. With fast
# accumulation, the products of a decoder block differ from exact sums of the same operands by 0.2 %, or by 0.4 % for
# sums of 17,920 terms. The rounding of the operands causes a much larger error, 3.7 %. Therefore the products of the
# decoder blocks, with at most 17,920 terms, use fast accumulation, which saves an eighth of their time. The input
# gradient of the head sums 151,936 terms and does not use fast accumulation.
MOST_TERMS_FAST = 32768


@dataclass(frozen=True)
class ScaledRows:
    """A matrix in FP8. An element's value is its number in ``data`` multiplied by the scale of the element's row."""

    data: Tensor  # e4m3 or e5m2, [rows, cols]; the last dimension is summed
    scale: Tensor  # f32 [rows]; or 0-d, if both operands of a product have a single scale for all rows
    norm: Tensor | None = None  # f32 [rows]: Euclidean norms before the rounding; None if they are not needed

    @classmethod
    def of(cls, x: Tensor) -> ScaledRows:
        """Return x [rows, cols] in FP8. Use this for tensors that are computed by a kernel without FP8 results."""
        return cls(*ops.fp8_quantize_rows(x))


@dataclass(frozen=True)
class Fp8Matrix:
    """A frozen NF4 weight [outputs, inputs] that is converted to FP8 at each use, either untransposed or transposed.

    The values of NF4 codes are in [-1, 1]. The absmax of a block is the largest absolute value of its 64 elements. No
    element of a row therefore exceeds the row's largest absmax, so the scales can be computed when the weight is
    loaded.
    """

    source: QuantizedMatrix
    row_scale: Tensor  # f32 [outputs]
    row_inverse: Tensor
    column_scale: Tensor  # f32 [inputs]
    column_inverse: Tensor

    @classmethod
    def of(cls, matrix: FrozenMatrix) -> Fp8Matrix:
        """Return the matrix with its scales. Raises `ReferenceImplError` unless the matrix is NF4 and each row consists
        of whole blocks."""
        if not isinstance(matrix, QuantizedMatrix):
            raise ReferenceImplError("precision", "fp8 with weights that are not nf4", "choose weights='nf4'")
        if matrix.cols % BLOCK:
            raise ReferenceImplError("precision", f"fp8 with {matrix.cols} inputs", f"use a multiple of {BLOCK}")
        largest = matrix.absmax.view(matrix.rows, matrix.cols // BLOCK)
        row_scale, row_inverse = power_of_two_scale(largest.amax(dim=1))
        column = (each.repeat_interleave(BLOCK) for each in power_of_two_scale(largest.amax(dim=0)))
        return cls(matrix, row_scale, row_inverse, *column)

    def rows(self) -> ScaledRows:
        """Return the weight [outputs, inputs] in FP8, for the product x @ W^T."""
        source = self.source
        return ScaledRows(ops.fp8_from_nf4(source.codes, source.absmax, self.row_inverse, source.cols), self.row_scale)

    def transposed(self) -> ScaledRows:
        """Return the transposed weight [inputs, outputs] in FP8, for the product grad @ W."""
        source = self.source
        data = ops.fp8_from_nf4_transposed(source.codes, source.absmax, self.column_inverse, source.rows)
        return ScaledRows(data, self.column_scale)


# One rounding to e4m3 and one to bfloat16 together increase a row's norm at most by this factor.
_ROUNDED = 1.07
# The largest slope of the function silu(x), at x near 2.4.
_STEEPEST = 1.1


@dataclass(frozen=True)
class MlpLimits:
    """Two factors, f32 [1] each, from which upper bounds of SwiGLU's results are computed (see `kernels/fp8_products`).

    A bound for a token is a factor multiplied by the norms of the token's rows. It follows from the Cauchy-Schwarz
    inequality, for every column of the MLP: |gate| <= |x| |W_gate| and |grad_act| <= |grad| |W_down| (W: its weights).
    """

    forward: Tensor
    backward: Tensor

    @classmethod
    def of(cls, gate_up: QuantizedMatrix, down: QuantizedMatrix) -> MlpLimits:
        """Return both factors for the weights gate_up [2I, H] and down [H, I]; I: columns of the MLP, H: hidden size.

        `forward` is the largest |row i of gate| * |row i of up| over the I columns of the MLP. `backward` is the
        largest |column i of down| * max(1.1 |row i of up|, |row i of gate|). |v| is the Euclidean norm of v. Both
        factors include a margin of 7 % for each of four roundings.
        """
        gate, up = _dense(gate_up).norm(dim=1).chunk(2)
        columns = _dense(down).norm(dim=0)
        forward = (gate * up).amax()
        backward = (columns * torch.maximum(_STEEPEST * up, gate)).amax()
        return cls(*(limit.mul(_ROUNDED**4).reshape(1) for limit in (forward, backward)))


def _dense(matrix: QuantizedMatrix) -> Tensor:
    """Return the matrix in f32.

    Plain torch operations compute the matrix. A kernel would have to be in the kernel plan, and the plan contains only
    kernels that steps launch.
    """
    return nf4.dequantize(matrix.codes, matrix.absmax, matrix.rows, matrix.cols, torch.float32)


class Fp8Products:
    """The object that computes products in FP8 and counts them. A product that cannot run in FP8 raises an error."""

    def __init__(self, dtype: torch.dtype, most_terms_fast: int = MOST_TERMS_FAST) -> None:
        self.dtype = dtype
        self.most_terms_fast = most_terms_fast
        self.count = 0

    def multiply(self, a: ScaledRows, b: ScaledRows, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return a @ b^T (+ bias) [M, N] in the compute dtype; a [M, K], b [N, K], bias [N].

        If ``out`` is given, the result is written to ``out``.
        """
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

    def serves(self, x: ScaledRows, intermediate: int) -> bool:
        """Return True if x has norms of its rows, and fused kernels support the products around SwiGLU for x."""
        return x.norm is not None and ops.fp8_serves(x.data, intermediate, self.dtype)

    def up_swiglu(self, x: ScaledRows, weight: ScaledRows, limits: MlpLimits) -> tuple[Tensor, ScaledRows]:
        """Return gate_up = x W^T [tokens, 2I] in the compute dtype, and silu(gate) * up [tokens, I] in FP8.

        I: intermediate size. x [tokens, hidden]; weight [2I, hidden], with the rows of gate first. One fused kernel
        computes both results if `serves` returns True. Otherwise a product and a kernel of SwiGLU do.
        """
        if x.norm is None or not self.serves(x, weight.data.shape[0] // 2):
            gate_up = self.multiply(x, weight)
            return gate_up, ScaledRows(*ops.fp8_swiglu_forward(gate_up))
        self.count += 1
        gate_up, data, scale = ops.fp8_up_swiglu(x.data, x.scale, weight.data, weight.scale, x.norm, limits.forward)
        return gate_up, ScaledRows(data, scale)

    def down_swiglu_backward(
        self, grad: ScaledRows, weight: ScaledRows, gate_up: Tensor, input_norm: Tensor, limits: MlpLimits
    ) -> ScaledRows:
        """Return the gradient [tokens, 2I] of gate_up in FP8. One fused kernel computes it if `serves` returns True.

        I: intermediate size. grad [tokens, hidden]: gradient of the MLP's output. weight [I, hidden]: W_down
        transposed. gate_up [tokens, 2I]. input_norm f32 [tokens]: the norms of the rows from which gate_up was
        computed.
        """
        if grad.norm is None or not self.serves(grad, weight.data.shape[0]):
            return ScaledRows(*ops.fp8_swiglu_backward(self.multiply(grad, weight), gate_up))
        self.count += 1
        read = (grad.data, grad.scale, weight.data, weight.scale, gate_up, grad.norm, input_norm, limits.backward)
        return ScaledRows(*ops.fp8_down_swiglu_backward(*read))


# The value of each code of an 8-bit type, in the order of the codes. The tables are computed here, before any step. If
# a recorded step computed them, every replay would compute them again.
_VALUES = {
    dtype: torch.arange(256, dtype=torch.uint8).view(dtype).float()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
}


def _twin(a: ScaledRows, b: ScaledRows, bias: Tensor | None, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    """Return the product that `Fp8Products.multiply` would return, in ``dtype``, computed with torch's fp32 product."""
    product = _float(a.data) @ _float(b.data).t()
    product = product * (a.scale if a.scale.dim() == 0 else a.scale[:, None]) * b.scale
    if bias is not None:
        product = product + bias
    return product.to(dtype) if out is None else out.copy_(product)


def _float(data: Tensor) -> Tensor:
    """Return ``data``, which is e4m3 or e5m2, in fp32. On a CPU a lookup table takes a quarter of torch's time."""
    return _VALUES[data.dtype].index_select(0, data.view(torch.uint8).flatten().int()).view(data.shape)
