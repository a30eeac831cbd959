"""NF4 dequantization in plain torch: convert 4-bit codes and the scales of blocks to a dense matrix."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
NESTED_BLOCK = 256  # number of absmax values that share one scale in double quantization

# The 16 values of NF4, quantiles of a normal distribution, from the QLoRA paper. They are rounded as in bitsandbytes.
CODEBOOK = torch.tensor(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    dtype=torch.float32,
)
# Row b contains the two NF4 values of a byte with the value b, the high nibble first. One lookup for each byte takes a
# quarter of the time of one lookup for each element.
PAIRS = torch.stack((CODEBOOK.repeat_interleave(16), CODEBOOK.repeat(16)), dim=1)


def dequantize(
    codes: Tensor, absmax: Tensor, rows: int, cols: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """Return the weight [rows, cols] in ``dtype``; codes uint8 [rows*cols/2], absmax float32 [rows*cols/64]."""
    values = torch.nn.functional.embedding(codes.int(), PAIRS.to(codes.device)).view(-1, BLOCK)
    weight = (values * absmax[:, None]).to(dtype).view(rows, cols)
    return weight if out is None else out.copy_(weight)


def dequantize_double(
    codes: Tensor,
    absmax_codes: Tensor,
    absmax_map: Tensor,
    nested_absmax: Tensor,
    offset: Tensor,
    rows: int,
    cols: int,
    dtype: torch.dtype,
) -> Tensor:
    """Dequantize with quantized scales: absmax[j] = absmax_map[absmax_codes[j]] * nested_absmax[j // 256] + offset.

    absmax_codes uint8 [rows*cols/64], absmax_map f32 [256], nested_absmax f32 [ceil(rows*cols/64/256)], offset f32 0-d.
    """
    scale = nested_absmax.repeat_interleave(NESTED_BLOCK)[: absmax_codes.numel()]
    absmax = absmax_map[absmax_codes.int()] * scale + offset
    return dequantize(codes, absmax, rows, cols, dtype)
