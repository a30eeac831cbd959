"""Quantize rows to FP8, each row with its own scale, in plain torch.

    scale = the smallest power of two for which amax / scale <= 448,   data = round(x / scale)     e4m3

amax is the largest absolute value of the row, and 448 is the largest value of e4m3. Scaling by a power of two is exact.
So the only error is the rounding to the three fraction bits of e4m3. The error is at most 2^-4 of the value if the
value is at least 2^-14 of amax, and for smaller values at most 2^-10 of the scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0
# The scale is the smallest power of two with 448 * scale >= amax, and 448 = 1.75 * 2^8. Let amax = 1.m * 2^e. Then the
# scale is 2^(e - 8) if 1.m <= 1.75, and 2^(e - 7) otherwise. CARRY makes this choice: if it is added to the bits of
# amax, the fraction overflows into the exponent exactly if 1.m > 1.75.
CARRY = 0x1FFFFF
FRACTION_BITS = 23
INVERSE_EXPONENT = 254  # the sum of the exponent fields of a power of two and of its inverse
NOT_FINITE = 255
OFFSET = 8


def power_of_two_scale(amax: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and its inverse, both exact, for amax f32 >= 0. If amax is infinite or NaN, the scale is NaN."""
    bits = amax.contiguous().view(torch.int32)
    exponent = (((bits + CARRY) >> FRACTION_BITS) - OFFSET).clamp(1, INVERSE_EXPONENT - 1)
    scale = (exponent << FRACTION_BITS).view(torch.float32)
    inverse = ((INVERSE_EXPONENT - exponent) << FRACTION_BITS).view(torch.float32)
    finite = (bits >> FRACTION_BITS) < NOT_FINITE
    return torch.where(finite, scale, torch.nan), inverse


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x f32 [rows, columns] in FP8: data e4m3 [rows, columns] and scale f32 [rows]."""
    scale, inverse = power_of_two_scale(x.abs().amax(dim=1))
    return (x * inverse[:, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [rows, columns] in FP8: data e4m3 [rows, columns] and scale f32 [rows]."""
    return to_fp8(x.float())
