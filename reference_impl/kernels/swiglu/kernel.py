"""SwiGLU and SiLU, forward and backward.

Legend: I intermediate size, s = 1 / (1 + exp(-gate)).

    act = gate * s * up
    grad_gate = grad_act * up * s * (1 + gate * (1 - s)),  grad_up = grad_act * gate * s          fp32, rounded once
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import KernelSpec, Pointer, dtype_name, kernel, launch, require_shape

# Each thread handles eight elements, which are one 16-byte load of bf16 from each operand.
_NUM_WARPS = 4
_BLOCK = 8 * 32 * _NUM_WARPS


@kernel()
def _forward_kernel(
    gate_up: tl.tensor, act: tl.tensor, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
) -> None:
    begin(PDL)
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate_offset = row * (2 * WIDTH) + column
    gate = tl.load(gate_up + gate_offset, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + gate_offset + WIDTH, mask=inside, other=0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * up
    tl.store(act + row * WIDTH + column, result.to(act.dtype.element_ty), mask=inside)


@kernel()
def _backward_kernel(
    grad_act: tl.tensor,
    gate_up: tl.tensor,
    grad_gate_up: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate_offset = row * (2 * WIDTH) + column
    grad = tl.load(grad_act + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_up + gate_offset, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + gate_offset + WIDTH, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    grad_gate = grad * up * s * (1.0 + gate * (1.0 - s))
    grad_up = grad * gate * s
    tl.store(grad_gate_up + gate_offset, grad_gate.to(grad_gate_up.dtype.element_ty), mask=inside)
    tl.store(grad_gate_up + gate_offset + WIDTH, grad_up.to(grad_gate_up.dtype.element_ty), mask=inside)


@kernel()
def _silu_forward_kernel(
    x: tl.tensor, y: tl.tensor, COUNT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
) -> None:
    begin(PDL)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < COUNT, other=0.0).to(tl.float32)
    tl.store(y + i, (value * tl.sigmoid(value)).to(y.dtype.element_ty), mask=i < COUNT)


@kernel()
def _silu_backward_kernel(
    grad: tl.tensor, x: tl.tensor, grad_x: tl.tensor, COUNT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
) -> None:
    begin(PDL)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dy = tl.load(grad + i, mask=i < COUNT, other=0.0).to(tl.float32)
    value = tl.load(x + i, mask=i < COUNT, other=0.0).to(tl.float32)
    s = tl.sigmoid(value)
    result = dy * s * (1.0 + value * (1.0 - s))
    tl.store(grad_x + i, result.to(grad_x.dtype.element_ty), mask=i < COUNT)


def _gated_spec(
    op: str, function: Any, names: tuple[str, ...], tokens: int, intermediate: int, dtype: str
) -> KernelSpec:
    block = min(_BLOCK, triton.next_power_of_2(intermediate))
    return KernelSpec(
        op=op,
        shape=(tokens, intermediate),
        dtype=dtype,
        constants=(),
        num_warps=_NUM_WARPS,
        num_stages=1,
        function=function,
        pointers=tuple(Pointer(name, dtype) for name in names),
        constexprs={"WIDTH": intermediate, "BLOCK": block},
        grid=(tokens * -(-intermediate // block),),
    )


@functools.cache
def forward_spec(tokens: int, intermediate: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `forward` launches for gate_up [tokens, 2 * intermediate] of
    `dtype`."""
    return _gated_spec("swiglu.forward", _forward_kernel, ("gate_up", "act"), tokens, intermediate, dtype)


@functools.cache
def backward_spec(tokens: int, intermediate: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `backward` launches for gate_up [tokens, 2 * intermediate] of
    `dtype`."""
    names = ("grad_act", "gate_up", "grad_gate_up")
    return _gated_spec("swiglu.backward", _backward_kernel, names, tokens, intermediate, dtype)


def _silu_spec(op: str, function: Any, names: tuple[str, ...], count: int, dtype: str) -> KernelSpec:
    return KernelSpec(
        op=op,
        shape=(count,),
        dtype=dtype,
        constants=(),
        num_warps=_NUM_WARPS,
        num_stages=1,
        function=function,
        pointers=tuple(Pointer(name, dtype) for name in names),
        constexprs={"COUNT": count, "BLOCK": _BLOCK},
        grid=(-(-count // _BLOCK),),
    )


@functools.cache
def silu_forward_spec(count: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `silu_forward` launches for `count` elements of `dtype`."""
    return _silu_spec("swiglu.silu_forward", _silu_forward_kernel, ("x", "y"), count, dtype)


@functools.cache
def silu_backward_spec(count: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `silu_backward` launches for `count` elements of `dtype`."""
    return _silu_spec("swiglu.silu_backward", _silu_backward_kernel, ("grad", "x", "grad_x"), count, dtype)


def specializations(*, tokens: int, intermediate: int, dtype: str, gated: bool = True) -> list[KernelSpec]:
    """Return the kernels of SwiGLU, forward and backward, or those of SiLU if `gated` is False."""
    if gated:
        return [forward_spec(tokens, intermediate, dtype), backward_spec(tokens, intermediate, dtype)]
    count = tokens * intermediate
    return [silu_forward_spec(count, dtype), silu_backward_spec(count, dtype)]


def forward(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up [tokens, I] for gate_up [tokens, 2I], with gate in the first I columns."""
    tokens, width = gate_up.shape
    spec = forward_spec(tokens, width // 2, dtype_name("swiglu.forward", "gate_up", gate_up.dtype))
    require_shape(spec.op, "gate_up", gate_up, (tokens, width // 2 * 2))
    act = torch.empty(tokens, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    launch(spec, gate_up, act)
    return act


def backward(grad_act: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the gradient of gate_up [tokens, 2I]; grad_act [tokens, I].

    out: the tensor for the result, which may be gate_up, or None for a new tensor.
    """
    tokens, intermediate = grad_act.shape
    spec = backward_spec(tokens, intermediate, dtype_name("swiglu.backward", "gate_up", gate_up.dtype))
    require_shape(spec.op, "gate_up", gate_up, (tokens, 2 * intermediate))
    grad_gate_up = torch.empty_like(gate_up) if out is None else out
    require_shape(spec.op, "out", grad_gate_up, (tokens, 2 * intermediate))
    launch(spec, grad_act, gate_up, grad_gate_up)
    return grad_gate_up


def silu_forward(x: Tensor) -> Tensor:
    """Return x * sigmoid(x) for x of any shape."""
    y = torch.empty_like(x)
    launch(silu_forward_spec(x.numel(), dtype_name("swiglu.silu_forward", "x", x.dtype)), x, y)
    return y


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return grad * sigmoid(x) * (1 + x * (1 - sigmoid(x))) for grad, x of any shape."""
    spec = silu_backward_spec(x.numel(), dtype_name("swiglu.silu_backward", "x", x.dtype))
    require_shape(spec.op, "grad", grad, tuple(x.shape))
    grad_x = torch.empty_like(x)
    launch(spec, grad, x, grad_x)
    return grad_x
