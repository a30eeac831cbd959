"""The two products of a linear layer's backward, as tiled kernels (for the contracts C-TILE-BWD-001 to 007).

Legend: C [M, N] = A [M, K] @ B [K, N];  grad_A = grad_C @ B^T [M, K],  grad_B = A^T @ grad_C [K, N].

Tiles are 16 x 16: 256 threads, two fp32 tiles in 2 * 16 * 16 * 4 = 2048 bytes of shared memory, and the loop over the
reduced dimension unrolled four times. Elements outside of the matrices are masked in loads and stores, so every thread
reaches every barrier. fp32 products follow IEEE 754, without TF32 and tensor cores, because a backward pass in TF32
once became NaN for gradients of size 1e5 (the upstream project's issue ALB-076). fp16 and bf16 operands are converted
to fp32 on load and accumulated in fp32.
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
    dtype_name,
    kernel,
    launch,
    require_shape,
)

TILE = 16
"""The number of rows, and of columns, of a tile. It must be divisible by UNROLL."""
UNROLL = 4
"""How many times the loop over the reduced dimension is unrolled."""
_NUM_WARPS = TILE * TILE // 32


@kernel()
def _backward_a_kernel(
    grad_c: tl.tensor,
    b: tl.tensor,
    grad_a: tl.tensor,
    M: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    SIZE: tl.constexpr,
    UNROLLED: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    k = (tl.program_id(0) * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    m = (tl.program_id(1) * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for first in range(0, N, SIZE * UNROLLED):
        for tile in tl.static_range(UNROLLED):
            n = first + tile * SIZE + tl.arange(0, SIZE)
            grad_mask = (m < M)[:, None] & (n < N)[None, :]
            grad = tl.load(grad_c + m[:, None] * N + n[None, :], mask=grad_mask, other=0.0).to(tl.float32)
            b_mask = (k < K)[:, None] & (n < N)[None, :]
            weight = tl.load(b + k[:, None] * N + n[None, :], mask=b_mask, other=0.0).to(tl.float32)
            total = tl.dot(grad, tl.trans(weight), total, input_precision="ieee")
    pointers = grad_a + m[:, None] * K + k[None, :]
    inside = (m < M)[:, None] & (k < K)[None, :]
    if ACCUMULATE:
        total += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    tl.store(pointers, total.to(grad_a.dtype.element_ty), mask=inside)


@kernel()
def _backward_b_kernel(
    a: tl.tensor,
    grad_c: tl.tensor,
    grad_b: tl.tensor,
    M: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    SIZE: tl.constexpr,
    UNROLLED: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    n = (tl.program_id(0) * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    k = (tl.program_id(1) * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for first in range(0, M, SIZE * UNROLLED):
        for tile in tl.static_range(UNROLLED):
            m = (first + tile * SIZE + tl.arange(0, SIZE)).to(tl.int64)
            a_mask = (m < M)[:, None] & (k < K)[None, :]
            value = tl.load(a + m[:, None] * K + k[None, :], mask=a_mask, other=0.0).to(tl.float32)
            grad_mask = (m < M)[:, None] & (n < N)[None, :]
            grad = tl.load(grad_c + m[:, None] * N + n[None, :], mask=grad_mask, other=0.0).to(tl.float32)
            total = tl.dot(tl.trans(value), grad, total, input_precision="ieee")
    pointers = grad_b + k[:, None] * N + n[None, :]
    inside = (k < K)[:, None] & (n < N)[None, :]
    if ACCUMULATE:
        total += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    tl.store(pointers, total.to(grad_b.dtype.element_ty), mask=inside)


def _spec(
    op: str,
    function: Any,
    pointers: tuple[Pointer, ...],
    shape: tuple[int, int, int],
    out_shape: tuple[int, int],
    accumulate: bool,
) -> KernelSpec:
    m, k, n = shape
    dtypes = tuple((pointer.name, pointer.dtype) for pointer in pointers)
    return KernelSpec(
        op=op,
        shape=shape,
        dtype=next(pointer.dtype for pointer in pointers if pointer.name == "grad_c"),
        constants=(*dtypes, ("tile", TILE), ("accumulate", accumulate)),
        num_warps=_NUM_WARPS,
        num_stages=1,
        function=function,
        pointers=pointers,
        constexprs={"M": m, "K": k, "N": n, "SIZE": TILE, "UNROLLED": UNROLL, "ACCUMULATE": accumulate},
        grid=(-(-out_shape[1] // TILE), -(-out_shape[0] // TILE)),
    )


@functools.cache
def backward_a_spec(
    m: int, k: int, n: int, grad_dtype: str, b_dtype: str, out_dtype: str, *, accumulate: bool
) -> KernelSpec:
    """Return the spec (description) of the kernel that `backward_a` launches. The shape in its key is (M, K, N)."""
    pointers = (Pointer("grad_c", grad_dtype), Pointer("b", b_dtype), Pointer("grad_a", out_dtype))
    return _spec("gemm.backward_a", _backward_a_kernel, pointers, (m, k, n), (m, k), accumulate)


@functools.cache
def backward_b_spec(
    m: int, k: int, n: int, a_dtype: str, grad_dtype: str, out_dtype: str, *, accumulate: bool
) -> KernelSpec:
    """Return the spec (description) of the kernel that `backward_b` launches. The shape in its key is (M, K, N)."""
    pointers = (Pointer("a", a_dtype), Pointer("grad_c", grad_dtype), Pointer("grad_b", out_dtype))
    return _spec("gemm.backward_b", _backward_b_kernel, pointers, (m, k, n), (k, n), accumulate)


def specializations(
    *, m: int, k: int, n: int, grad_dtype: str = "fp32", weight_dtype: str = "fp32", accumulate: bool = False
) -> list[KernelSpec]:
    """Return the kernels of both backward products of C [m, n] = A [m, k] @ B [k, n]. A's data type is grad_dtype."""
    return [
        backward_a_spec(m, k, n, grad_dtype, weight_dtype, grad_dtype, accumulate=accumulate),
        backward_b_spec(m, k, n, grad_dtype, grad_dtype, grad_dtype, accumulate=accumulate),
    ]


def _output(op: str, out: Tensor | None, like: Tensor, shape: tuple[int, int], accumulate: bool) -> Tensor:
    if out is None:
        if accumulate:
            raise KernelArgumentError(op, "out", "missing", "pass the tensor that the product is added to")
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    require_shape(op, "out", out, shape)
    return out


def backward_a(grad_c: Tensor, b: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """Return grad_c @ b^T [M, K], in `out` or in a new tensor of grad_c's dtype; grad_c [M, N], b [K, N].

    `accumulate`: add the product to `out`, which is then required.
    """
    op = "gemm.backward_a"
    (m, n), k = grad_c.shape, b.shape[0]
    require_shape(op, "b", b, (k, n))
    out = _output(op, out, grad_c, (m, k), accumulate)
    names = [dtype_name(op, "*", tensor.dtype) for tensor in (grad_c, b, out)]
    launch(backward_a_spec(m, k, n, *names, accumulate=accumulate), grad_c, b, out)
    return out


def backward_b(a: Tensor, grad_c: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """Return a^T @ grad_c [K, N], in `out` or in a new tensor of grad_c's dtype; a [M, K], grad_c [M, N].

    `accumulate`: add the product to `out`, which is then required.
    """
    op = "gemm.backward_b"
    (m, n), k = grad_c.shape, a.shape[1]
    require_shape(op, "a", a, (m, k))
    out = _output(op, out, grad_c, (k, n), accumulate)
    names = [dtype_name(op, "*", tensor.dtype) for tensor in (a, grad_c, out)]
    launch(backward_b_spec(m, k, n, *names, accumulate=accumulate), a, grad_c, out)
    return out
