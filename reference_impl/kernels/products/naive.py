"""The products of the MLP and of the head in plain torch. Inner precision float32, or float64 for float64 inputs.

A device without the fused kernels makes these steps one by one (`reference_impl.ops`), so nothing is served here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.swiglu import naive as swiglu

PANEL = 192
"""Columns of logits that share a maximum and a sum; of the last panel, what is left of the vocabulary."""


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


def head_logits(x: Tensor, head: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, H], head [V, H]; logits [T, V] are written into ``out`` -> of each panel, [T, P] both.

    The largest of its logits as they are stored, and the sum of exp(logit - largest).
    """
    out.copy_(_product(x, head.t()))
    panels = [panel.to(torch.promote_types(out.dtype, torch.float32)) for panel in torch.split(out, PANEL, dim=1)]
    # finite, as -inf - -inf would be NaN
    lowest = torch.finfo(torch.float32).min
    maxima = torch.stack([panel.amax(dim=1).clamp(min=lowest) for panel in panels], dim=1)
    totals = [(panel - maxima[:, index, None]).exp().sum(dim=1) for index, panel in enumerate(panels)]
    return maxima, torch.stack(totals, dim=1)
