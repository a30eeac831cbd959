"""The backward of softmax over each row, in plain torch: grad_s = p * (grad_p - sum(grad_p * p))."""

from __future__ import annotations

import torch
from torch import Tensor


def backward(grad_p: Tensor, p: Tensor) -> Tensor:
    """Return grad_s [rows, columns], the gradient of the scores; probabilities p and grad_p [rows, columns]."""
    inner = torch.float64 if p.dtype == torch.float64 else torch.float32
    grad, probability = grad_p.to(inner), p.to(inner)
    return (probability * (grad - (grad * probability).sum(dim=1, keepdim=True))).to(p.dtype)
