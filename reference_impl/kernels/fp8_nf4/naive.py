"""FP8 from NF4, in plain torch: R rows, C columns of the weight.

Both ways from the same codes: rows for a product with the weight, columns for one with its transpose. The inverse
scales are powers of two, so that the only rounding beside the product of code and absmax is that to e4m3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.fp8_rows.naive import LARGEST
from reference_impl.kernels.nf4 import naive


def rows(codes: Tensor, absmax: Tensor, inverse: Tensor, columns: int) -> Tensor:
    """codes u8 [R*C/2], absmax f32 [R*C/64], inverse f32 [R] -> round(weight * inverse of the row), e4m3 [R, C]."""
    weight = naive.dequantize(codes, absmax, inverse.numel(), columns, torch.float32)
    return (weight * inverse[:, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def transposed(codes: Tensor, absmax: Tensor, inverse: Tensor, row_count: int) -> Tensor:
    """codes, absmax as in `rows`, inverse f32 [C] -> round(weight^T * inverse of the row of that), e4m3 [C, R]."""
    weight = naive.dequantize(codes, absmax, row_count, inverse.numel(), torch.float32)
    return (weight * inverse).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).t().contiguous()
