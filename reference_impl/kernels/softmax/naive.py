"""Softmax backward in plain torch: grad_s = p * (grad_p - sum(grad_p * p)), by row."""

from __future__ import annotations

import torch
from torch import Tensor


def backward(grad_p: Tensor, p: Tensor) -> Tensor:
    """grad_p, p [rows, C] -> grad_s [rows, C]."""
    inner = torch.float64 if p.dtype == torch.float64 else torch.float32
    grad, probability = grad_p.to(inner), p.to(inner)
    return (probability * (grad - (grad * probability).sum(dim=1, keepdim=True))).to(p.dtype)
