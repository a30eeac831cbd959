"""The products around the MLP in plain torch. Inner precision float32, or float64 for float64 inputs.

A device without the fused kernels makes these steps one by one (`reference_impl.ops`), so nothing is served here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.swiglu import naive as swiglu


def serves_up(*_shape: object) -> bool:
    return False


def serves_down_backward(*_shape: object) -> bool:
    return False


def adds(*_shape: object) -> bool:
    return False


def serves_input_gradient(*_shape: object) -> bool:
    return False


def _product(left: Tensor, right: Tensor) -> Tensor:
    inner = torch.promote_types(left.dtype, torch.float32)
    return left.to(inner) @ right.to(inner)


def up_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, H], weight [2I, H] with gate's rows first -> gate_up [T, 2I], and act [T, I] of it as it is stored."""
    gate_up = _product(x, weight.t()).to(x.dtype)
    return gate_up, swiglu.forward(gate_up)


def down_swiglu_backward(grad: Tensor, weight: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """grad [T, H], weight [H, I], gate_up [T, 2I] -> its gradient, into ``out`` if given, which may be gate_up."""
    grad_act = _product(grad, weight)
    grad_gate_up = swiglu.backward(grad_act, gate_up.to(grad_act.dtype)).to(gate_up.dtype)
    return grad_gate_up if out is None else out.copy_(grad_gate_up)


def add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """x [T, K], weight [H, K], residual [T, H] -> residual + x weight^T [T, H], rounded once."""
    return (residual + _product(x, weight.t())).to(residual.dtype)


def input_gradient(grad: Tensor, weight: Tensor, grad_extra: Tensor, weight_extra: Tensor) -> Tensor:
    """grad [T, O], weight [O, H], grad_extra [T, R], weight_extra [R, H] -> both products' sum [T, H], rounded once."""
    return (_product(grad, weight) + _product(grad_extra, weight_extra)).to(grad.dtype)
