"""SwiGLU whose results are in FP8, in plain torch: T tokens, I intermediate; the formulas are those of `swiglu`."""

from __future__ import annotations

from torch import Tensor

from reference_impl.kernels.fp8_rows.naive import to_fp8
from reference_impl.kernels.swiglu import naive


def forward(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up as FP8 data [T, I] and scale f32 [T], for gate_up [T, 2I], gate in the first I columns."""
    return to_fp8(naive.forward(gate_up.float()))


def backward(grad_act: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of gate_up as FP8 data [T, 2I] and scale f32 [T]; grad_act [T, I], gate_up [T, 2I]."""
    return to_fp8(naive.backward(grad_act.float(), gate_up.float()))
