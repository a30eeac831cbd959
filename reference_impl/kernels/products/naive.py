"""The products of the MLP and of the head in plain torch, computed in float32, or in float64 for float64 inputs.

K: number of terms of a sum. `adds` and the functions named `serves_...` return False here, because a device without the
fused kernels uses separate operators (`reference_impl.ops`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.swiglu import naive as swiglu

PANEL = 192
"""Number of logits of a row that share a maximum and a sum (a panel). The last panel of a row may have fewer."""


def serves_up(*_shape: object) -> bool:
    return False


def serves_down_backward(*_shape: object) -> bool:
    return False


def adds(*_shape: object) -> bool:
    return False


def serves_input_gradient(*_shape: object) -> bool:
    return False


def serves_head(tokens: int, hidden: int, vocabulary: int, dtype: torch.dtype) -> bool:  # noqa: ARG001 - as the kernel's
    return False


def _product(left: Tensor, right: Tensor) -> Tensor:
    inner = torch.promote_types(left.dtype, torch.float32)
    return left.to(inner) @ right.to(inner)


def up_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return gate_up = x W^T [tokens, 2I] and act = silu(gate) * up [tokens, I], computed from the rounded gate_up.

    I: intermediate size. x [tokens, hidden]; weight W [2I, hidden], with the rows of gate first.
    """
    gate_up = _product(x, weight.t()).to(x.dtype)
    return gate_up, swiglu.forward(gate_up)


def down_swiglu_backward(grad: Tensor, weight: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the gradient of gate_up [tokens, 2I]; grad [tokens, hidden], weight [hidden, I]; I: intermediate size.

    out: the tensor for the result, which may be gate_up, or None for a new tensor.
    """
    grad_act = _product(grad, weight)
    grad_gate_up = swiglu.backward(grad_act, gate_up.to(grad_act.dtype)).to(gate_up.dtype)
    return grad_gate_up if out is None else out.copy_(grad_gate_up)


def add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Return residual + x weight^T, rounded once; residual [tokens, hidden], x [tokens, K], weight [hidden, K]."""
    return (residual + _product(x, weight.t())).to(residual.dtype)


def input_gradient(grad: Tensor, weight: Tensor, grad_extra: Tensor, weight_extra: Tensor) -> Tensor:
    """Return grad W + grad_extra W_extra [tokens, hidden], rounded once.

    grad [tokens, outputs], weight W [outputs, hidden], grad_extra [tokens, rank], weight_extra W_extra [rank, hidden].
    """
    return (_product(grad, weight) + _product(grad_extra, weight_extra)).to(grad.dtype)


def head_logits(x: Tensor, head: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the logits x head^T into ``out`` [tokens, vocabulary]. Return maxima and totals, both [tokens, panels].

    x [tokens, hidden], head [vocabulary, hidden]. maxima: the largest rounded logit of each panel. totals: the sum of
    exp(logit - maximum) over the panel.
    """
    out.copy_(_product(x, head.t()))
    panels = [panel.to(torch.promote_types(out.dtype, torch.float32)) for panel in torch.split(out, PANEL, dim=1)]
    # Start the maximum at a finite number, because -inf - -inf would be NaN.
    lowest = torch.finfo(torch.float32).min
    maxima = torch.stack([panel.amax(dim=1).clamp(min=lowest) for panel in panels], dim=1)
    totals = [(panel - maxima[:, index, None]).exp().sum(dim=1) for index, panel in enumerate(panels)]
    return maxima, torch.stack(totals, dim=1)
