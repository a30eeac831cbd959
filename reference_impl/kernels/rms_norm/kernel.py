"""RMSNorm. The kernels can also add a residual before the norm, or the residual's gradient in the backward.

Legend: T tokens, H hidden, P programs in stage 1 of the backward, G norms whose gains are reduced together.

    y = round(x * rstd * gain),  rstd = 1 / sqrt(mean(x^2) + eps)          all in fp32, rounded once
    grad_x = rstd * (g - n * mean(g * n)) (+ grad_residual),  n = x * rstd,  g = grad_y * gain
    grad_gain = sum over tokens of grad_y * n

The gain's gradient is reduced in two stages and in fixed order, without atomics. In stage 1, each of P programs sums a
contiguous block of rows. Stage 2 adds up the P partial sums. P depends only on T, so results have the same bits on
every device and in every run.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import (
    KernelSpec,
    Pointer,
    device_function,
    dtype_name,
    kernel,
    launch,
    require_shape,
)

# _MIN_ROWS: smallest number of rows of a program of stage 1. With at least two rows for each program, there are fewer
# partial sums than rows. _MAX_PARTIALS: largest number of programs, about four for each multiprocessor of a large GPU.
_MIN_ROWS = 2
_MAX_PARTIALS = 512
# Size of a tile, and number of warps, for the reduction of partial sums. `kernels/lora_gradients` uses the same
# numbers.
REDUCE_ROWS = 256
REDUCE_COLUMNS = 16
REDUCE_WARPS = 8
# Number of elements that each thread of the row kernels holds: two 16-byte loads of bf16.
_ELEMENTS_PER_THREAD = 16


@kernel()
def _forward_kernel(
    x: tl.tensor,
    gain: tl.tensor,
    y: tl.tensor,
    rstd: tl.tensor,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < H
    offset = row.to(tl.int64) * H + column
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gain + column, mask=inside, other=0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(value * value) / H + EPS)
    tl.store(y + offset, (value * scale * g).to(y.dtype.element_ty), mask=inside)
    tl.store(rstd + row, scale)


@kernel()
def _add_forward_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    gain: tl.tensor,
    total: tl.tensor,
    y: tl.tensor,
    rstd: tl.tensor,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < H
    offset = row.to(tl.int64) * H + column
    left = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(residual + offset, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gain + column, mask=inside, other=0.0)
    # Use the sum rounded to the data type, because the next layer reads the rounded sum.
    rounded = (left + right).to(total.dtype.element_ty)
    value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(value * value) / H + EPS)
    tl.store(total + offset, rounded, mask=inside)
    tl.store(y + offset, (value * scale * g).to(y.dtype.element_ty), mask=inside)
    tl.store(rstd + row, scale)


@kernel("rstd")
def _backward_kernel(
    grad_y: tl.tensor,
    x: tl.tensor,
    gain: tl.tensor,
    rstd: tl.tensor,
    grad_residual: tl.tensor,
    grad_x: tl.tensor,
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
        scale = tl.load(rstd + row, mask=row < T, other=0.0)
        normed = value * scale
        grad_normed = dy * g
        result = scale * (grad_normed - normed * (tl.sum(grad_normed * normed) / H))
        if ADD_RESIDUAL:
            result += tl.load(grad_residual + offset, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + offset, result.to(grad_x.dtype.element_ty), mask=inside)
        grad_gain += dy * normed
    tl.store(partials + program * H + column, grad_gain, mask=column < H)


@device_function
def reduce_gain(
    partials: tl.tensor,
    grad_gain: tl.tensor,
    block: tl.tensor,
    P: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sum one norm's partials [P, H] over P, only for the `COLUMNS` columns from column `block` * `COLUMNS` on. Write
    the sums to grad_gain [H]."""
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    lane = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, P, ROWS):
        row = first + lane
        inside = (row < P)[:, None] & (column < H)[None, :]
        total += tl.load(partials + row[:, None] * H + column[None, :], mask=inside, other=0.0)
    tl.store(grad_gain + column, tl.sum(total, axis=0), mask=column < H)


@kernel("grad_gain")
def _reduce_gain_kernel(
    partials: tl.tensor,
    grad_gain: tl.tensor,
    P: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    norm = tl.program_id(1)
    reduce_gain(partials + norm * P * H, grad_gain + norm * H, tl.program_id(0), P, H, ROWS, COLUMNS)


def _row_warps(block: int) -> int:
    return max(1, min(16, block // (32 * _ELEMENTS_PER_THREAD)))


@functools.cache
def forward_spec(tokens: int, hidden: int, eps: float, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `forward` launches for x [tokens, hidden] of `dtype`."""
    block = triton.next_power_of_2(hidden)
    return KernelSpec(
        op="rms_norm.forward",
        shape=(tokens, hidden),
        dtype=dtype,
        constants=(("eps", eps),),
        num_warps=_row_warps(block),
        num_stages=1,
        function=_forward_kernel,
        pointers=(Pointer("x", dtype), Pointer("gain", "fp32"), Pointer("y", dtype), Pointer("rstd", "fp32")),
        constexprs={"H": hidden, "BLOCK": block, "EPS": eps},
        grid=(tokens,),
    )


@functools.cache
def add_forward_spec(tokens: int, hidden: int, eps: float, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `add_forward` launches for x [tokens, hidden] of `dtype`."""
    block = triton.next_power_of_2(hidden)
    data = tuple(Pointer(name, dtype) for name in ("x", "residual"))
    results = (Pointer("total", dtype), Pointer("y", dtype), Pointer("rstd", "fp32"))
    return KernelSpec(
        op="rms_norm.add_forward",
        shape=(tokens, hidden),
        dtype=dtype,
        constants=(("eps", eps),),
        num_warps=_row_warps(block),
        num_stages=1,
        function=_add_forward_kernel,
        pointers=(*data, Pointer("gain", "fp32"), *results),
        constexprs={"H": hidden, "BLOCK": block, "EPS": eps},
        grid=(tokens,),
    )


def gain_partial_count(tokens: int) -> int:
    """Return P, the number of partial sums that stage 1 of the backward writes for a gain's gradient."""
    return -(-tokens // _backward_rows(tokens))


def _backward_rows(tokens: int) -> int:
    return max(_MIN_ROWS, -(-tokens // _MAX_PARTIALS))


@functools.cache
def backward_spec(tokens: int, hidden: int, dtype: str, *, add_residual: bool) -> KernelSpec:
    """Return the spec (description) of the kernel of stage 1 of `backward`. It writes grad_x, and the gain's partial
    sums f32 [P, hidden]."""
    block = triton.next_power_of_2(hidden)
    rows = _backward_rows(tokens)
    return KernelSpec(
        op="rms_norm.backward",
        shape=(tokens, hidden),
        dtype=dtype,
        constants=(("add_residual", add_residual),),
        num_warps=_row_warps(block),
        num_stages=1,
        function=_backward_kernel,
        pointers=(
            Pointer("grad_y", dtype),
            Pointer("x", dtype),
            Pointer("gain", "fp32"),
            Pointer("rstd", "fp32", aligned=False),
            Pointer("grad_residual", dtype),
            Pointer("grad_x", dtype),
            Pointer("partials", "fp32"),
        ),
        constexprs={"T": tokens, "H": hidden, "BLOCK": block, "ROWS": rows, "ADD_RESIDUAL": add_residual},
        grid=(-(-tokens // rows),),
    )


def reduce_gain_spec(tokens: int, hidden: int, norms: int) -> KernelSpec:
    """Return the spec (description) of the kernel of stage 2 of the backward of `norms` norms. It adds up the partial
    sums in fixed order."""
    return _reduce_gain_spec(norms, gain_partial_count(tokens), hidden)


@functools.cache
def _reduce_gain_spec(norms: int, partials: int, hidden: int) -> KernelSpec:
    return KernelSpec(
        op="rms_norm.reduce_gain",
        shape=(norms, partials, hidden),
        dtype="fp32",
        constants=(),
        num_warps=REDUCE_WARPS,
        num_stages=1,
        function=_reduce_gain_kernel,
        pointers=(Pointer("partials", "fp32"), Pointer("grad_gain", "fp32", aligned=False)),
        constexprs={"P": partials, "H": hidden, "ROWS": REDUCE_ROWS, "COLUMNS": REDUCE_COLUMNS},
        grid=(-(-hidden // REDUCE_COLUMNS), norms),
    )


def specializations(*, tokens: int, hidden: int, eps: float, dtype: str) -> list[KernelSpec]:
    """Return every kernel that norms of [tokens, hidden] activations of `dtype` launch in a training step.

    The kernel that sums the gradients of a decoder block's gains is not included, because `kernels/lora_gradients`
    lists it.
    """
    return [
        forward_spec(tokens, hidden, eps, dtype),
        add_forward_spec(tokens, hidden, eps, dtype),
        backward_spec(tokens, hidden, dtype, add_residual=False),
        backward_spec(tokens, hidden, dtype, add_residual=True),
        reduce_gain_spec(tokens, hidden, 1),  # for the final norm
    ]


def forward(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return y [tokens, hidden] in x's dtype and rstd f32 [tokens], for x [tokens, hidden] and gain f32 [hidden]."""
    tokens, hidden = x.shape
    spec = forward_spec(tokens, hidden, eps, dtype_name("rms_norm.forward", "x", x.dtype))
    require_shape(spec.op, "gain", gain, (hidden,))
    y = torch.empty_like(x)
    rstd = torch.empty(tokens, dtype=torch.float32, device=x.device)
    launch(spec, x, gain, y, rstd)
    return y, rstd


def add_forward(x: Tensor, residual: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return total = x + residual and y = RMSNorm(total), both [tokens, hidden] in x's dtype, and rstd f32 [tokens];
    gain f32 [hidden]."""
    tokens, hidden = x.shape
    spec = add_forward_spec(tokens, hidden, eps, dtype_name("rms_norm.add_forward", "x", x.dtype))
    require_shape(spec.op, "residual", residual, (tokens, hidden))
    require_shape(spec.op, "gain", gain, (hidden,))
    total, y = torch.empty_like(x), torch.empty_like(x)
    rstd = torch.empty(tokens, dtype=torch.float32, device=x.device)
    launch(spec, x, residual, gain, total, y, rstd)
    return total, y, rstd


def backward(
    grad_y: Tensor,
    x: Tensor,
    gain: Tensor,
    rstd: Tensor,
    grad_residual: Tensor | None = None,
    grad_gain: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return grad_x [tokens, hidden] (+ grad_residual), and the gain's gradient f32 [hidden].

    grad_y, x [tokens, hidden]; gain f32 [hidden]; rstd f32 [tokens] of the forward. grad_gain: the tensor for the
    gain's gradient; None for a new tensor.
    """
    if grad_gain is None:
        grad_gain = torch.empty(x.shape[1], dtype=torch.float32, device=x.device)
    partials = gain_partials(x, 1)
    grad_x = backward_to_partials(grad_y, x, gain, rstd, partials[0], grad_residual)
    reduce_gains(partials, grad_gain)
    return grad_x, grad_gain


def gain_partials(x: Tensor, norms: int) -> Tensor:
    """Return an uninitialized tensor f32 [norms, P, hidden] for partial sums of the gradients of the gains. norms: the
    number of RMSNorms; x: [tokens, hidden]; P: `gain_partial_count(tokens)`."""
    tokens, hidden = x.shape
    return torch.empty(norms, gain_partial_count(tokens), hidden, dtype=torch.float32, device=x.device)


def backward_to_partials(
    grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
) -> Tensor:
    """Run stage 1 of `backward`. Return grad_x [tokens, hidden] (+ grad_residual), and write the gain's partial sums to
    partials, f32 [P, hidden]."""
    tokens, hidden = x.shape
    dtype = dtype_name("rms_norm.backward", "x", x.dtype)
    spec = backward_spec(tokens, hidden, dtype, add_residual=grad_residual is not None)
    require_shape(spec.op, "grad_y", grad_y, (tokens, hidden))
    require_shape(spec.op, "gain", gain, (hidden,))
    require_shape(spec.op, "rstd", rstd, (tokens,))
    if grad_residual is None:
        grad_residual = grad_y  # the kernel does not read this argument, but a kernel argument must be a tensor
    require_shape(spec.op, "grad_residual", grad_residual, (tokens, hidden))
    require_shape(spec.op, "partials", partials, (spec.grid[0], hidden))
    grad_x = torch.empty_like(x)
    launch(spec, grad_y, x, gain, rstd, grad_residual, grad_x, partials)
    return grad_x


def reduce_gains(partials: Tensor, grad_gains: Tensor) -> None:
    """Run stage 2 of `backward`: sum partials f32 [norms, P, hidden] over P, and write the sums into grad_gains f32,
    which has norms * hidden elements."""
    norms, count, hidden = partials.shape
    spec = _reduce_gain_spec(norms, count, hidden)
    require_shape(spec.op, "grad_gains", grad_gains.view(-1), (norms * hidden,))
    launch(spec, partials, grad_gains)
