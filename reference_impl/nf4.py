"""NF4, 4-bit NormalFloat weights (Dettmers et al., QLoRA, 2023), and the frozen matrices that use NF4.

Blocks of 64 consecutive elements share one scale, the float32 `absmax` (largest absolute value) of the block. A byte
holds two elements, the first in its high nibble.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reference_impl import ops
from reference_impl.errors import ReferenceImplError
from reference_impl.kernels.nf4 import naive
from reference_impl.kernels.nf4.naive import BLOCK, CODEBOOK

# The midpoints between the values of neighboring codes. The float32 sum has the same rounding as in bitsandbytes, so
# values at a midpoint get the same code as in bitsandbytes.
BOUNDARIES = (CODEBOOK[:-1] + CODEBOOK[1:]) / 2

# Number of elements that are quantized at a time, so that temporary float32 tensors take less than 100 MB.
_CHUNK = 1 << 24


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes uint8 [rows*cols/2] and absmax float32 [rows*cols/64] of ``weight`` [rows, cols].

    A value on the boundary of two codes gets the lower code. A block of zeros gets absmax 0 and the code of the value
    0. Raises `ReferenceImplError` if the number of elements is not a multiple of 64.
    """
    if weight.numel() % BLOCK:
        raise ReferenceImplError(
            "weight",
            f"{tuple(weight.shape)} has {weight.numel()} elements",
            f"NF4 needs a multiple of {BLOCK}, so use another shape",
        )
    flat = weight.reshape(-1)
    codes = torch.empty(flat.numel() // 2, dtype=torch.uint8, device=weight.device)
    absmax = torch.empty(flat.numel() // BLOCK, dtype=torch.float32, device=weight.device)
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        end = start + chunk.numel()
        _quantize_chunk(chunk, codes[start // 2 : end // 2], absmax[start // BLOCK : end // BLOCK])
    return codes, absmax


def _quantize_chunk(chunk: Tensor, codes: Tensor, absmax: Tensor) -> None:
    blocks = chunk.float().view(-1, BLOCK)
    torch.amax(blocks.abs(), dim=1, out=absmax)
    # Multiply by the reciprocal instead of dividing. The rounding is then the same as in bitsandbytes, and values at a
    # midpoint get the same code as there.
    scaled = (blocks * absmax.clamp(min=1e-38).reciprocal()[:, None]).clamp(-1, 1)
    nibbles = torch.bucketize(scaled.view(-1, 2), BOUNDARIES.to(chunk.device), out_int32=True)
    codes.copy_(nibbles[:, 0] * 16 + nibbles[:, 1])


class FrozenMatrix(Protocol):
    """A weight that is read and never trained."""

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix [rows, cols] in ``dtype``."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the stored tensors, by name."""
        ...


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix in NF4. `dense` dequantizes the matrix at each call. No dense copy is kept between two calls."""

    codes: Tensor
    absmax: Tensor
    rows: int
    cols: int

    @classmethod
    def from_dense(cls, weight: Tensor) -> QuantizedMatrix:
        codes, absmax = quantize(weight)
        return cls(codes, absmax, weight.shape[0], weight.shape[1])

    def dense(self, dtype: torch.dtype) -> Tensor:
        return ops.nf4_dequantize(self.codes, self.absmax, self.rows, self.cols, dtype)

    def tensors(self) -> dict[str, Tensor]:
        return {"codes": self.codes, "absmax": self.absmax}


@dataclass(frozen=True)
class FullMatrix:
    """A frozen weight that is kept dense, in the compute dtype."""

    weight: Tensor

    @classmethod
    def of_nf4(cls, weight: Tensor, dtype: torch.dtype) -> FullMatrix:
        """Return ``weight`` [rows, cols], rounded to the values that `QuantizedMatrix.dense` would return.

        Plain torch operations dequantize the weight once, before training. The kernel plan therefore needs no kernel
        for this weight.
        """
        codes, absmax = quantize(weight)
        return cls(naive.dequantize(codes, absmax, weight.shape[0], weight.shape[1], dtype))

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.weight.to(dtype)

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}
