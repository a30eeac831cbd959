"""RMSNorm with a result in FP8. The kernels can also add a residual before the norm, and its gradient in the backward.

Legend: T tokens, H hidden, P programs in stage 1 of the backward. Formulas, rounding and the reduction of the gain's
gradient are the same as in `kernels/rms_norm`. A program holds a whole row, so it can compute the scale of the row in
FP8 (`kernels/fp8_rows`).
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.fp8_rows.kernel import empty_rows, row_scale, row_warps
from reference_impl.kernels.registry import KernelSpec, Pointer, dtype_name, kernel, launch, require_shape
from reference_impl.kernels.rms_norm.kernel import _backward_rows


@kernel("scale", "rstd", "norm")
def _forward_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    gain: tl.tensor,
    total: tl.tensor,
    y: tl.tensor,
    data: tl.tensor,
    scale: tl.tensor,
    rstd: tl.tensor,
    norm: tl.tensor,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    ADD: tl.constexpr,
    KEEP: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < H
    offset = row.to(tl.int64) * H + column
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gain + column, mask=inside, other=0.0)
    if ADD:
        # Use the sum rounded to the data type, because the next layer reads the rounded sum.
        rounded = (value + tl.load(residual + offset, mask=inside, other=0.0).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + offset, rounded, mask=inside)
        value = rounded.to(tl.float32)
    inverse_rms = 1.0 / tl.sqrt_rn(tl.sum(value * value) / H + EPS)
    result = value * inverse_rms * g
    if KEEP:
        tl.store(y + offset, result.to(y.dtype.element_ty), mask=inside)
    s, inverse = row_scale(tl.max(tl.abs(result), axis=0))
    tl.store(data + offset, (result * inverse).to(data.dtype.element_ty), mask=inside)
    tl.store(scale + row, s)
    tl.store(rstd + row, inverse_rms)
    tl.store(norm + row, tl.sqrt_rn(tl.sum(result * result)))


@kernel("scale", "rstd", "norm")
def _backward_kernel(
    grad_y: tl.tensor,
    x: tl.tensor,
    gain: tl.tensor,
    rstd: tl.tensor,
    grad_residual: tl.tensor,
    grad_x: tl.tensor,
    data: tl.tensor,
    scale: tl.tensor,
    norm: tl.tensor,
    partials: tl.tensor,
    T: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADD_RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    g = tl.load(gain + column, mask=column < H, other=0.0)
    grad_gain = tl.zeros([BLOCK], tl.float32)
    for i in range(ROWS):
        row = program * ROWS + i
        inside = (column < H) & (row < T)
        offset = row.to(tl.int64) * H + column
        dy = tl.load(grad_y + offset, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        inverse_rms = tl.load(rstd + row, mask=row < T, other=0.0)
        normed = value * inverse_rms
        grad_normed = dy * g
        result = inverse_rms * (grad_normed - normed * (tl.sum(grad_normed * normed) / H))
        if ADD_RESIDUAL:
            result += tl.load(grad_residual + offset, mask=inside, other=0.0).to(tl.float32)
        # Convert the rounded values to FP8, because other readers of this gradient read these rounded values.
        rounded = result.to(grad_x.dtype.element_ty)
        tl.store(grad_x + offset, rounded, mask=inside)
        wide = rounded.to(tl.float32)
        s, inverse = row_scale(tl.max(tl.abs(wide), axis=0))
        tl.store(data + offset, (wide * inverse).to(data.dtype.element_ty), mask=inside)
        tl.store(scale + row, s, mask=row < T)
        tl.store(norm + row, tl.sqrt_rn(tl.sum(wide * wide)), mask=row < T)
        grad_gain += dy * normed
    tl.store(partials + program * H + column, grad_gain, mask=column < H)


@functools.cache
def forward_spec(tokens: int, hidden: int, eps: float, dtype: str, *, add: bool, keep: bool) -> KernelSpec:
    """Return the spec (description) of the kernel that `add_forward` launches for x [tokens, hidden] of `dtype`. `add`:
    the kernel adds a residual to x. `keep`: the kernel also writes y in x's dtype."""
    block = triton.next_power_of_2(hidden)
    return KernelSpec(
        op="fp8_norm.forward",
        shape=(tokens, hidden),
        dtype=dtype,
        constants=(("eps", eps), ("add", add), ("keep", keep)),
        num_warps=row_warps(block),
        num_stages=1,
        function=_forward_kernel,
        pointers=(
            Pointer("x", dtype),
            Pointer("residual", dtype),
            Pointer("gain", "fp32"),
            Pointer("total", dtype),
            Pointer("y", dtype),
            Pointer("data", "fp8e4nv"),
            Pointer("scale", "fp32", aligned=False),
            Pointer("rstd", "fp32", aligned=False),
            Pointer("norm", "fp32", aligned=False),
        ),
        constexprs={"H": hidden, "BLOCK": block, "EPS": eps, "ADD": add, "KEEP": keep},
        grid=(tokens,),
    )


@functools.cache
def backward_spec(tokens: int, hidden: int, dtype: str, *, add_residual: bool) -> KernelSpec:
    """Return the spec (description) of the kernel that `backward_to_partials` launches; its partial sums are
    [ceil(tokens / rows), hidden]."""
    block = triton.next_power_of_2(hidden)
    rows = _backward_rows(tokens)
    return KernelSpec(
        op="fp8_norm.backward",
        shape=(tokens, hidden),
        dtype=dtype,
        constants=(("add_residual", add_residual),),
        num_warps=row_warps(block),
        num_stages=1,
        function=_backward_kernel,
        pointers=(
            Pointer("grad_y", dtype),
            Pointer("x", dtype),
            Pointer("gain", "fp32"),
            Pointer("rstd", "fp32", aligned=False),
            Pointer("grad_residual", dtype),
            Pointer("grad_x", dtype),
            Pointer("data", "fp8e4nv"),
            Pointer("scale", "fp32", aligned=False),
            Pointer("norm", "fp32", aligned=False),
            Pointer("partials", "fp32"),
        ),
        constexprs={"T": tokens, "H": hidden, "BLOCK": block, "ROWS": rows, "ADD_RESIDUAL": add_residual},
        grid=(-(-tokens // rows),),
    )


def specializations(*, tokens: int, hidden: int, eps: float, dtype: str, blocks: int) -> list[KernelSpec]:
    """Return every kernel that norms of [tokens, hidden] activations of `dtype` launch in a step with FP8 products."""
    later_inputs = [forward_spec(tokens, hidden, eps, dtype, add=True, keep=True)] if blocks > 1 else []
    return [
        forward_spec(tokens, hidden, eps, dtype, add=False, keep=True),  # for the input of the first block
        *later_inputs,
        forward_spec(tokens, hidden, eps, dtype, add=True, keep=False),
        backward_spec(tokens, hidden, dtype, add_residual=False),  # for the final norm
        backward_spec(tokens, hidden, dtype, add_residual=True),
    ]


def add_forward(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    """Return six tensors: total = x + residual, y = RMSNorm(total), y in FP8 as data [tokens, hidden] and scale f32
    [tokens], rstd f32 [tokens], and the Euclidean norm of each row of y before rounding, f32 [tokens].

    x, residual [tokens, hidden]; without residual, total is x. y in x's dtype is None unless `keep` is True.
    """
    tokens, hidden = x.shape
    dtype = dtype_name("fp8_norm.forward", "x", x.dtype)
    spec = forward_spec(tokens, hidden, eps, dtype, add=residual is not None, keep=keep)
    require_shape(spec.op, "gain", gain, (hidden,))
    if residual is not None:
        require_shape(spec.op, "residual", residual, (tokens, hidden))
    total = x if residual is None else torch.empty_like(x)
    y = torch.empty_like(x) if keep else None
    data, scale = empty_rows(tokens, hidden, x)
    rstd, norm = (torch.empty(tokens, dtype=torch.float32, device=x.device) for _ in range(2))
    # Kernel arguments must be tensors. So pass x in place of a `residual` or `y` that is None and not used.
    read, written = x if residual is None else residual, x if y is None else y
    launch(spec, x, read, gain, total, written, data, scale, rstd, norm)
    return total, y, data, scale, rstd, norm


def backward_to_partials(
    grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four tensors: grad_x [tokens, hidden] (+ grad_residual) in x's dtype, grad_x in FP8 as data [tokens,
    hidden] and scale f32 [tokens], and the Euclidean norm of each row of grad_x, f32 [tokens].

    The function also writes the partial sums of the gain's gradient to partials, f32 [programs of stage 1, hidden].
    """
    tokens, hidden = x.shape
    dtype = dtype_name("fp8_norm.backward", "x", x.dtype)
    spec = backward_spec(tokens, hidden, dtype, add_residual=grad_residual is not None)
    require_shape(spec.op, "grad_y", grad_y, (tokens, hidden))
    require_shape(spec.op, "gain", gain, (hidden,))
    require_shape(spec.op, "rstd", rstd, (tokens,))
    if grad_residual is None:
        grad_residual = grad_y  # the kernel does not read this argument
    require_shape(spec.op, "grad_residual", grad_residual, (tokens, hidden))
    require_shape(spec.op, "partials", partials, (spec.grid[0], hidden))
    grad_x = torch.empty_like(x)
    data, scale = empty_rows(tokens, hidden, x)
    norm = torch.empty(tokens, dtype=torch.float32, device=x.device)
    launch(spec, grad_y, x, gain, rstd, grad_residual, grad_x, data, scale, norm, partials)
    return grad_x, data, scale, norm
