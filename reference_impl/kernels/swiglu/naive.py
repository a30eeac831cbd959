"""SwiGLU and SiLU in plain torch, computed in float32, or in float64 for float64 inputs; I: intermediate size."""

from __future__ import annotations

import torch
from torch import Tensor


def _inner(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def forward(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up [tokens, I] for gate_up [tokens, 2I], with gate in the first I columns."""
    gate, up = _inner(gate_up).chunk(2, dim=1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def backward(grad_act: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the gradient of gate_up [tokens, 2I]; grad_act [tokens, I].

    out: the tensor for the result, which may be gate_up, or None for a new tensor.
    """
    gate, up = _inner(gate_up).chunk(2, dim=1)
    grad = _inner(grad_act)
    sigmoid = torch.sigmoid(gate)
    grad_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid))
    grad_gate_up = torch.cat((grad_gate, grad * gate * sigmoid), dim=1).to(gate_up.dtype)
    return grad_gate_up if out is None else out.copy_(grad_gate_up)


def silu_forward(x: Tensor) -> Tensor:
    """Return x * sigmoid(x) for x of any shape."""
    inner = _inner(x)
    return (inner * torch.sigmoid(inner)).to(x.dtype)


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return grad * sigmoid(x) * (1 + x * (1 - sigmoid(x))) for grad, x of any shape."""
    inner = _inner(x)
    sigmoid = torch.sigmoid(inner)
    return (_inner(grad) * sigmoid * (1 + inner * (1 - sigmoid))).to(x.dtype)
