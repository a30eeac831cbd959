"""The MLP's products in FP8, each with the SwiGLU that follows it, in plain torch. Intermediate results are float32.

`serves` always returns False here: a device without the fused kernels uses separate operators (`reference_impl.fp8`).
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
    """Return value f32 [R, C] as e4m3 data [R, C] and scale f32 [R]. bound f32 [R]: no |element| of a row is larger."""
    scale, inverse = power_of_two_scale(bound)
    return (value * inverse[:, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def up_swiglu(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, norms: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gate_up bf16 [tokens, 2I], and act = silu(gate) * up as e4m3 data [tokens, I] and scale f32 [tokens].

    I: intermediate size. x [tokens, hidden], weight [2I, hidden] (the rows of gate first): e4m3, with scales x_scale
    f32 [tokens], weight_scale f32 [2I]. norms f32 [tokens]: upper bounds of the Euclidean norms of x's rows. limit f32
    [1]: upper bound of |row i of gate's weight| * |row i of up's weight| for all i < I. act is computed from gate_up
    after gate_up was rounded to bf16.
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
    """Return the gradient of gate_up as e4m3 data [tokens, 2I] and scale f32 [tokens].

    I: intermediate size. grad [tokens, hidden], weight [I, hidden] (W_down transposed): e4m3, with scales grad_scale
    f32 [tokens], weight_scale f32 [I]. gate_up: bf16 [tokens, 2I]. norms f32 [tokens]: upper bounds of the Euclidean
    norms of grad's rows. input_norms f32 [tokens]: the same for the rows x from which gate_up was computed. limit f32
    [1]: upper bound of |row i of weight| * max(1.1 |row i of up's weight|, |row i of gate's weight|) for all i < I.
    """
    grad_gate_up = swiglu.backward(_product(grad, grad_scale, weight, weight_scale), gate_up.float())
    return _rows(grad_gate_up, norms * input_norms * limit)
