"""The backward products of a linear layer. The configuration's `gemm` names the path that computes the products.

Legend: C [M, N] = A [M, K] @ B [K, N];  grad_A = grad_C @ B^T [M, K],  grad_B = A^T @ grad_C [K, N].

    cublas  torch's product. fp32 operands are multiplied without TF32, even if the process allows TF32, because a TF32
            backward pass once became NaN at gradient magnitude 1e5 (ALB-076).
    tiled   the 16 x 16 kernel of `kernels/gemm`, or its naive twin for tensors on a CPU.
    fp16    a frozen weight is kept in fp16, so its fp32 original may be freed (PMAT-472: 2.6 GB for a 1.5B model). The
            other operand is rounded to fp16. Products are accumulated and stored in fp32.
    bf16    the same as fp16, with the type bf16

Every path takes the same arguments, and checks the arguments by the same rules before it writes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reference_impl.config import GemmPath
from reference_impl.errors import ReferenceImplError

if TYPE_CHECKING:
    from reference_impl.block import Block

HALF_TYPES: dict[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_OPERAND_TYPES = (torch.float32, torch.float16, torch.bfloat16)
# Operands in fp16 are multiplied by a power of two so that their largest element lies in [2^14, 2^15). Without this
# scaling, a gradient of 1e5 would be infinite in fp16 (largest value 65504), and a gradient of 1e-6 would lose bits.
_FP16_EXPONENT = 15
# Lower limit of the largest element's exponent, with which the scale and its inverse stay normal numbers of fp32.
_SMALLEST_EXPONENT = -110


class BackwardGemm:
    """Both backward products, computed by one path. The object holds no tensor, so many layers can share it."""

    def __init__(self, path: GemmPath) -> None:
        self.path = path
        self.half = HALF_TYPES.get(path)

    def cache_weight(self, weight: Tensor) -> Tensor:
        """Return the tensor to pass to `grad_a` as `b` for a frozen weight [K, N]: the weight itself or a
        half-precision copy.

        Raises ReferenceImplError if a finite element would be infinite in the path's type. The check is one host sync.
        """
        if self.half is None:
            return weight
        cached = weight.to(self.half)
        if bool((cached.isinf() & weight.isfinite()).any()):
            largest = torch.finfo(self.half).max
            raise ReferenceImplError(
                "weight", f"has elements beyond {largest:g}", f"use another path: {self.path} cannot represent them"
            )
        return cached

    def grad_a(self, grad_c: Tensor, b: Tensor, out: Tensor | None = None, *, accumulate: bool = False) -> Tensor:
        """Return grad_c @ b^T [M, K] in `out` (fp32 or grad_c's dtype), or in a new tensor if `out` is None.

        grad_c [M, N], b [K, N]. `accumulate`: add to `out`. Raises ReferenceImplError if an argument does not fit.
        """
        _check_operand("grad_c", grad_c)
        _check_operand("b", b)
        m, k = grad_c.shape[0], b.shape[0]
        _check_partner("b", b, "grad_c", grad_c, axis=1)
        self._check_dtypes("b", b, "grad_c", grad_c)
        out = self._output(out, grad_c, (m, k), accumulate=accumulate)
        if self.path == "tiled":
            return _tiled("backward_a", grad_c, b, out, accumulate=accumulate)
        return self._multiply(grad_c, b.t(), out, accumulate=accumulate)

    def grad_b(self, a: Tensor, grad_c: Tensor, out: Tensor | None = None, *, accumulate: bool = False) -> Tensor:
        """Return a^T @ grad_c [K, N] in `out` (fp32 or grad_c's dtype), or in a new tensor if `out` is None.

        a [M, K], grad_c [M, N]. `accumulate`: add to `out`. Raises ReferenceImplError if an argument does not fit.
        """
        _check_operand("a", a)
        _check_operand("grad_c", grad_c)
        k, n = a.shape[1], grad_c.shape[1]
        _check_partner("grad_c", grad_c, "a", a, axis=0)
        self._check_dtypes("grad_c", grad_c, "a", a)
        out = self._output(out, grad_c, (k, n), accumulate=accumulate)
        if self.path == "tiled":
            return _tiled("backward_b", a, grad_c, out, accumulate=accumulate)
        return self._multiply(a.t(), grad_c, out, accumulate=accumulate)

    def _check_dtypes(self, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
        if self.path == "cublas" and tensor.dtype != other.dtype:
            found = f"has dtype {tensor.dtype}, but {other_name} has {other.dtype}"
            raise ReferenceImplError(name, found, "pass operands of the same dtype to the path cublas")

    def _output(self, out: Tensor | None, like: Tensor, shape: tuple[int, int], *, accumulate: bool) -> Tensor:
        if out is None:
            if accumulate:
                raise ReferenceImplError("out", "is missing", "pass the tensor that the product is added to")
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        if tuple(out.shape) != shape:
            raise ReferenceImplError("out", f"has shape {list(out.shape)}", f"pass a tensor of shape {list(shape)}")
        if out.dtype not in {torch.float32, like.dtype}:
            raise ReferenceImplError("out", f"has dtype {out.dtype}", f"pass a tensor of torch.float32 or {like.dtype}")
        _check_layout("out", out, like.device)
        return out

    def _multiply(self, left: Tensor, right: Tensor, out: Tensor, *, accumulate: bool) -> Tensor:
        """Write left @ right into `out`, or add left @ right to `out`, with torch's product. If `half` is set, the
        operands are rounded to this data type first."""
        if self.half is None:
            return _library_product(left, right, out, accumulate=accumulate)
        left_half, left_scale = _halve(left, self.half)
        right_half, right_scale = _halve(right, self.half)
        scales = [scale for scale in (left_scale, right_scale) if scale is not None]
        if not scales and out.dtype == torch.float32:
            return _library_product(left_half, right_half, out, accumulate=accumulate)
        product = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        _library_product(left_half, right_half, product, accumulate=False)
        for scale in scales:
            product.mul_(scale)
        return out.add_(product) if accumulate else out.copy_(product)


def install(blocks: Iterable[Block], path: GemmPath) -> None:
    """Make the blocks compute the gradients of their two LoRA factors one by one, with products of `path`.

    With `cublas` nothing changes: a block computes both gradients in two launches of `kernels/lora_gradients`.
    """
    if path == "cublas":
        return
    gemm = BackwardGemm(path)

    def write_product_(out: Tensor, left: Tensor, right: Tensor) -> None:
        """Compute out = left @ right by `grad_b`, not by `reference_impl.block.write_product_`. `grad_b` transposes its
        first operand, so it gets `left` transposed."""
        gemm.grad_b(left.t().contiguous(), right.contiguous(), out)

    for block in blocks:
        block.write_product_ = write_product_


def _halve(matrix: Tensor, half: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return the matrix in the type `half`, and the power of two (0-d fp32) by which it was divided before the
    rounding. The second result is None for bf16, and for a matrix that already has the type."""
    if matrix.dtype == half:
        return matrix, None
    if half != torch.float16:
        return matrix.to(half), None
    matrix = matrix.to(torch.float32)
    exponent = torch.frexp(matrix.abs().amax()).exponent.clamp(min=_SMALLEST_EXPONENT) - _FP16_EXPONENT
    scale = torch.ldexp(matrix.new_ones(()), exponent)
    return (matrix / scale).to(half), scale


def _library_product(left: Tensor, right: Tensor, out: Tensor, *, accumulate: bool) -> Tensor:
    """Write left @ right into `out`, or add it to `out`. Products of half-precision operands are summed in fp32."""
    if left.dtype == out.dtype:
        with _ieee_products() if out.is_cuda and out.dtype == torch.float32 else nullcontext():
            return out.addmm_(left, right) if accumulate else torch.mm(left, right, out=out)
    if not left.is_cuda:
        product = left.to(out.dtype) @ right.to(out.dtype)
        return out.add_(product) if accumulate else out.copy_(product)
    if not accumulate:
        torch.ops.aten.mm.dtype_out(left, right, out.dtype, out=out)
        return out
    return out.add_(torch.ops.aten.mm.dtype(left, right, out.dtype))


@contextmanager
def _ieee_products() -> Iterator[None]:
    """Make cuBLAS compute fp32 products without TF32 inside the `with`. Afterwards restore the setting of the
    process."""
    matmul = torch.backends.cuda.matmul
    allowed = matmul.fp32_precision
    if allowed == "ieee":
        yield
        return
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = allowed


def _tiled(name: str, left: Tensor, right: Tensor, out: Tensor, *, accumulate: bool) -> Tensor:
    from reference_impl import ops

    product: Tensor = getattr(ops._pick("gemm", out), name)(left, right, out, accumulate)
    return product


def _check_operand(name: str, tensor: Tensor) -> None:
    if tensor.dim() != 2:
        raise ReferenceImplError(name, f"has {tensor.dim()} dimensions", "pass a matrix")
    if 0 in tensor.shape:
        raise ReferenceImplError(
            name, f"has shape {list(tensor.shape)}", "pass a matrix with elements; is the batch empty, or the rank 0?"
        )
    if tensor.dtype not in _OPERAND_TYPES:
        raise ReferenceImplError(
            name, f"has dtype {tensor.dtype}", f"pass one of {', '.join(map(str, _OPERAND_TYPES))}"
        )
    _check_layout(name, tensor, tensor.device)


def _check_layout(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ReferenceImplError(name, f"is on {tensor.device}", f"pass a tensor on {device}")
    if not tensor.is_contiguous():
        raise ReferenceImplError(name, f"is not contiguous (strides {tensor.stride()})", "pass a contiguous tensor")


def _check_partner(name: str, tensor: Tensor, other_name: str, other: Tensor, *, axis: int) -> None:
    """Check that `tensor` has the device of `other` and the same length along `axis` (0: rows, 1: columns)."""
    _check_layout(name, tensor, other.device)
    if tensor.shape[axis] != other.shape[axis]:
        what = ("rows", "columns")[axis]
        raise ReferenceImplError(
            name, f"has {tensor.shape[axis]} {what}", f"pass as many as {other_name} has: {other.shape[axis]}"
        )
