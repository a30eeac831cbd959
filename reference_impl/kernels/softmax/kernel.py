"""The backward of softmax over each row.

p: probabilities [rows, C], with a row for each sequence, head and query, and a column for each of C keys.

    grad_s = p * (grad_p - sum(grad_p * p))          sum over the row, in fp32, rounded once; grad_p: the gradient of p
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import KernelSpec, Pointer, dtype_name, kernel, launch, require_shape

_ELEMENTS_PER_THREAD = 8
_MAX_BLOCK = 4096


@kernel()
def _backward_kernel(
    grad_p: tl.tensor, p: tl.tensor, grad_s: tl.tensor, C: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
) -> None:
    begin(PDL)
    row = tl.program_id(0).to(tl.int64) * C
    lane = tl.arange(0, BLOCK)
    products = tl.zeros([BLOCK], tl.float32)
    for first in range(0, C, BLOCK):
        column = first + lane
        grad = tl.load(grad_p + row + column, mask=column < C, other=0.0).to(tl.float32)
        products += grad * tl.load(p + row + column, mask=column < C, other=0.0).to(tl.float32)
    dot = tl.sum(products)
    for first in range(0, C, BLOCK):
        column = first + lane
        grad = tl.load(grad_p + row + column, mask=column < C, other=0.0).to(tl.float32)
        probability = tl.load(p + row + column, mask=column < C, other=0.0).to(tl.float32)
        result = probability * (grad - dot)
        tl.store(grad_s + row + column, result.to(grad_s.dtype.element_ty), mask=column < C)


@functools.cache
def backward_spec(rows: int, columns: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `backward` launches for p [rows, columns] of `dtype`."""
    block = min(_MAX_BLOCK, triton.next_power_of_2(columns))
    return KernelSpec(
        op="softmax.backward",
        shape=(rows, columns),
        dtype=dtype,
        constants=(),
        num_warps=max(1, block // (32 * _ELEMENTS_PER_THREAD)),
        num_stages=1,
        function=_backward_kernel,
        pointers=tuple(Pointer(name, dtype) for name in ("grad_p", "p", "grad_s")),
        constexprs={"C": columns, "BLOCK": block},
        grid=(rows,),
    )


def specializations(*, rows: int, columns: int, dtype: str) -> list[KernelSpec]:
    """Return the kernel of a softmax backward over [rows, columns] probabilities."""
    return [backward_spec(rows, columns, dtype)]


def backward(grad_p: Tensor, p: Tensor) -> Tensor:
    """Return grad_s [rows, columns], the gradient of the scores; grad_p, p [rows, columns]."""
    rows, columns = p.shape
    spec = backward_spec(rows, columns, dtype_name("softmax.backward", "p", p.dtype))
    require_shape(spec.op, "grad_p", grad_p, (rows, columns))
    grad_s = torch.empty_like(p)
    launch(spec, grad_p, p, grad_s)
    return grad_s
