"""SwiGLU whose results are in FP8, in plain torch. The formulas are those of `swiglu`. I: intermediate size."""

from __future__ import annotations

from torch import Tensor

from reference_impl.kernels.fp8_rows.naive import to_fp8
from reference_impl.kernels.swiglu import naive


def forward(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up in FP8 (data [tokens, I], scale f32 [tokens]); gate_up [tokens, 2I] begins with gate."""
    return to_fp8(naive.forward(gate_up.float()))


def backward(grad_act: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of gate_up in FP8 (data [tokens, 2I], scale f32 [tokens]) for grad_act [tokens, I]."""
    return to_fp8(naive.backward(grad_act.float(), gate_up.float()))
