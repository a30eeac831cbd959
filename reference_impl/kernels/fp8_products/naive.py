"""The MLP's products in FP8 with SwiGLU in the same step, in plain torch; inner precision float32.

A device without the fused kernels makes these steps one by one (`reference_impl.fp8`), so nothing is served here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.fp8_rows.naive import LARGEST, power_of_two_scale
from reference_impl.kernels.swiglu import naive as swiglu


def serves(*_shape: object) -> bool:
    return False


def _product(left: Tensor, left_scale: Tensor, right: Tensor, right_scale: Tensor) -> Tensor:
    return left.float() @ right.float().t() * left_scale[:, None] * right_scale


def _rows(value: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """value f32 [R, C] whose rows are bounded by bound f32 [R] -> e4m3 data [R, C], scale f32 [R]."""
    scale, inverse = power_of_two_scale(bound)
    return (value * inverse[:, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def up_swiglu(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, norms: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """x e4m3 [T, H], scale f32 [T]; weight e4m3 [2I, H], gate's rows first, scale f32 [2I] -> gate_up bf16 [T, 2I].

    norms f32 [T] of x's rows, limit f32 [1]: the largest product of norms of a row of gate and its row of up, both at
    least. -> act of gate_up as it is stored, as e4m3 data [T, I] and scale f32 [T].
    """
    gate_up = _product(x, x_scale, weight, weight_scale).bfloat16()
    return gate_up, *_rows(swiglu.forward(gate_up.float()), norms * norms * limit)


def down_swiglu_backward(
    grad: Tensor,
    grad_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    gate_up: Tensor,
    norms: Tensor,
    input_norms: Tensor,
    limit: Tensor,
) -> tuple[Tensor, Tensor]:
    """grad e4m3 [T, H], weight e4m3 [I, H] transposed, with scales f32 [T], [I]; gate_up bf16 [T, 2I] -> its gradient.

    norms f32 [T] of grad's rows, input_norms f32 [T] of the rows of which gate_up was made, and limit f32 [1], of every
    column the norm of weight's row times the larger one of 1.1 |up's row| and |gate's row|, all at least.
    -> e4m3 data [T, 2I], scale f32 [T].
    """
    grad_gate_up = swiglu.backward(_product(grad, grad_scale, weight, weight_scale), gate_up.float())
    return _rows(grad_gate_up, norms * input_norms * limit)
