"""Convert an NF4 weight to FP8, in plain torch. Legend: R rows, C columns of the weight.

`rows` is used for a product with the weight, and `transposed` for a product with the transposed weight. Both read the
same codes. Inverse scales are powers of two, so multiplying by them is exact. Rounding occurs only in code * absmax,
and in the conversion to e4m3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impl.kernels.fp8_rows.naive import LARGEST
from reference_impl.kernels.nf4 import naive


def rows(codes: Tensor, absmax: Tensor, inverse: Tensor, columns: int) -> Tensor:
    """Return round(weight[r, c] * inverse[r]), e4m3 [R, C], of the weight with codes u8 [R*C/2] and absmax f32
    [R*C/64]; inverse f32 [R]; R rows, C columns."""
    weight = naive.dequantize(codes, absmax, inverse.numel(), columns, torch.float32)
    return (weight * inverse[:, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def transposed(codes: Tensor, absmax: Tensor, inverse: Tensor, row_count: int) -> Tensor:
    """Return round(weight[r, c] * inverse[c]) at [c, r], e4m3 [C, R], of the weight with codes u8 [R*C/2] and absmax
    f32 [R*C/64]; inverse f32 [C]; R rows, C columns."""
    weight = naive.dequantize(codes, absmax, row_count, inverse.numel(), torch.float32)
    return (weight * inverse).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).t().contiguous()
