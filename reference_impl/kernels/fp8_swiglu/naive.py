"""SwiGLU whose results are in FP8, in plain torch: T tokens, I intermediate; the formulas are those of `swiglu`."""

from __future__ import annotations

from torch import Tensor

from reference_impl.kernels.fp8_rows.naive import to_fp8
from reference_impl.kernels.swiglu import naive


def forward(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """gate_up [T, 2I] -> silu(gate) * up as FP8 data [T, I] and scale [T]; gate is the first I columns."""
    return to_fp8(naive.forward(gate_up.float()))


def backward(grad_act: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """grad_act [T, I], gate_up [T, 2I] -> grad_gate_up as FP8 data [T, 2I] and scale [T]."""
    return to_fp8(naive.backward(grad_act.float(), gate_up.float()))
