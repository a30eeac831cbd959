"""SwiGLU whose results are in FP8, forward and backward. I: intermediate size.

The formulas are those of `kernels/swiglu`. They are computed in fp32, and results are rounded once, to FP8 with one
scale for each row (`kernels/fp8_rows`). A program reads a whole row once and keeps it in registers, in two pieces whose
lengths must be powers of two. For example, 8960 columns need 8192 + 1024 elements, of which 256 are unused. A single
piece would need 16384 elements, of which 7424 would be unused.
"""

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.fp8_rows.kernel import empty_rows, row_scale
from reference_impl.kernels.registry import (
    KernelSpec,
    Pointer,
    device_function,
    dtype_name,
    kernel,
    launch,
    require_shape,
)

# Number of elements of one operand that each thread holds. The backward kernel also holds two results for each element.
_ELEMENTS_PER_THREAD = 32
_MAX_WARPS = 16


@device_function
def _activation(gate_up: tl.tensor, row: tl.tensor, column: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    offset = row * (2 * WIDTH) + column
    inside = column < WIDTH
    gate = tl.load(gate_up + offset, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + offset + WIDTH, mask=inside, other=0.0).to(tl.float32)
    return gate * tl.sigmoid(gate) * up


@device_function
def _gradients(
    grad_act: tl.tensor, gate_up: tl.tensor, row: tl.tensor, column: tl.tensor, WIDTH: tl.constexpr
) -> tl.tensor:
    offset = row * (2 * WIDTH) + column
    inside = column < WIDTH
    grad = tl.load(grad_act + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_up + offset, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + offset + WIDTH, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    return grad * up * s * (1.0 + gate * (1.0 - s)), grad * gate * s


@device_function
def _largest(value: tl.tensor) -> tl.tensor:
    return tl.max(tl.abs(value), axis=0)


@device_function
def _store(data: tl.tensor, column: tl.tensor, value: tl.tensor, inverse: tl.tensor, WIDTH: tl.constexpr) -> None:
    tl.store(data + column, (value * inverse).to(data.dtype.element_ty), mask=column < WIDTH)


@kernel("scale")
def _forward_kernel(
    gate_up: tl.tensor,
    data: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, FIRST)
    rest = FIRST + tl.arange(0, SECOND)
    act = _activation(gate_up, row, column, WIDTH)
    act_rest = _activation(gate_up, row, rest, WIDTH)
    s, inverse = row_scale(tl.maximum(_largest(act), _largest(act_rest)))
    _store(data + row * WIDTH, column, act, inverse, WIDTH)
    _store(data + row * WIDTH, rest, act_rest, inverse, WIDTH)
    tl.store(scale + row, s)


@kernel("scale")
def _backward_kernel(
    grad_act: tl.tensor,
    gate_up: tl.tensor,
    data: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, FIRST)
    rest = FIRST + tl.arange(0, SECOND)
    gate, up = _gradients(grad_act, gate_up, row, column, WIDTH)
    gate_rest, up_rest = _gradients(grad_act, gate_up, row, rest, WIDTH)
    largest = tl.maximum(_largest(gate), _largest(up))
    s, inverse = row_scale(tl.maximum(largest, tl.maximum(_largest(gate_rest), _largest(up_rest))))
    out = data + row * (2 * WIDTH)
    _store(out, column, gate, inverse, WIDTH)
    _store(out, rest, gate_rest, inverse, WIDTH)
    _store(out + WIDTH, column, up, inverse, WIDTH)
    _store(out + WIDTH, rest, up_rest, inverse, WIDTH)
    tl.store(scale + row, s)


def _pieces(width: int) -> tuple[int, int]:
    """Return the lengths of two pieces, both powers of two, whose sum is at least `width`.

    The first length is less than `width` if `width` > 1.
    """
    first: int = triton.next_power_of_2(width) // 2 if width > 1 else 1
    rest: int = triton.next_power_of_2(max(1, width - first))
    return first, rest


def _spec(op: str, function: Any, names: tuple[str, ...], tokens: int, intermediate: int, dtype: str) -> KernelSpec:
    first, second = _pieces(intermediate)
    return KernelSpec(
        op=op,
        shape=(tokens, intermediate),
        dtype=dtype,
        constants=(),
        num_warps=max(1, min(_MAX_WARPS, first // (32 * _ELEMENTS_PER_THREAD))),
        num_stages=1,
        function=function,
        pointers=(
            *(Pointer(name, dtype) for name in names),
            Pointer("data", "fp8e4nv"),
            Pointer("scale", "fp32", aligned=False),
        ),
        constexprs={"WIDTH": intermediate, "FIRST": first, "SECOND": second},
        grid=(tokens,),
    )


@functools.cache
def forward_spec(tokens: int, intermediate: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `forward` launches for gate_up [tokens, 2 * intermediate] of
    `dtype`."""
    return _spec("fp8_swiglu.forward", _forward_kernel, ("gate_up",), tokens, intermediate, dtype)


@functools.cache
def backward_spec(tokens: int, intermediate: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `backward` launches for gate_up [tokens, 2 * intermediate] of
    `dtype`."""
    return _spec("fp8_swiglu.backward", _backward_kernel, ("grad_act", "gate_up"), tokens, intermediate, dtype)


def specializations(*, tokens: int, intermediate: int, dtype: str) -> list[KernelSpec]:
    """Return the kernels of forward and backward on [tokens, intermediate] of `dtype`."""
    return [forward_spec(tokens, intermediate, dtype), backward_spec(tokens, intermediate, dtype)]


def forward(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up in FP8 (data [tokens, I], scale f32 [tokens]); gate_up [tokens, 2I] begins with gate."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    spec = forward_spec(tokens, width, dtype_name("fp8_swiglu.forward", "gate_up", gate_up.dtype))
    data, scale = empty_rows(tokens, width, gate_up)
    launch(spec, gate_up, data, scale)
    return data, scale


def backward(grad_act: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of gate_up in FP8 (data [tokens, 2I], scale f32 [tokens]) for grad_act [tokens, I]."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    spec = backward_spec(tokens, width, dtype_name("fp8_swiglu.backward", "gate_up", gate_up.dtype))
    require_shape(spec.op, "grad_act", grad_act, (tokens, width))
    data, scale = empty_rows(tokens, 2 * width, gate_up)
    launch(spec, grad_act, gate_up, data, scale)
    return data, scale
