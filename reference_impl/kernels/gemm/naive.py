"""The two products of a linear layer's backward, C [M, N] = A [M, K] @ B [K, N], in plain torch.

fp16 and bf16 operands are multiplied with float32 accumulation. The result is rounded once, to ``out``'s dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _product(left: Tensor, right: Tensor, dtype: torch.dtype, out: Tensor | None, accumulate: bool) -> Tensor:
    inner = torch.float64 if dtype == torch.float64 else torch.float32
    product = left.to(inner) @ right.to(inner)
    if out is None:
        return product.to(dtype)
    return out.copy_(out.to(inner) + product) if accumulate else out.copy_(product)


def backward_a(grad_c: Tensor, b: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """Return grad_c @ b^T [M, K], in ``out`` if given; grad_c [M, N], b [K, N]. ``accumulate``: add to ``out``."""
    return _product(grad_c, b.t(), grad_c.dtype, out, accumulate)


def backward_b(a: Tensor, grad_c: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """Return a^T @ grad_c [K, N], in ``out`` if given; a [M, K], grad_c [M, N]. ``accumulate``: add to ``out``."""
    return _product(a.t(), grad_c, grad_c.dtype, out, accumulate)
