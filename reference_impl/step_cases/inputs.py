"""Settings and random inputs for comparisons of a step's kernels.

Legend: B batch, S sequence length, T = B * S tokens, N query heads, Nkv key and value heads, D head_dim, H hidden, I
intermediate, V vocabulary, R rank, or rows of a matrix with C columns.

References are fp64 formulas that share no code with the kernels or their naive twins. They use torch's functions and
autograd, the rotation of transformers, and the table in the NF4 paper. A reference gives, for each element of a result,
the value and the sum of the sizes of its terms ("terms"). Rounding may change the value by a small multiple of unit
roundoff * terms, even if most of the terms cancel (Higham, Accuracy and Stability of Numerical Algorithms, 2002,
section 3.1). If a term is exp(x), a relative error u of x changes the term by the share |x| * u.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl.config import ModelConfig, TrainConfig
from reference_impl.kernel_table import KernelTable

_GUARD_ELEMENTS = 64  # number of NaN elements before and after a tensor; a multiple of 16 bytes, as kernels require
# A result that is smaller than 2^-126, the smallest normal number of fp32, may be flushed to zero. FLUSHED is the
# largest error of this kind, divided by fp32's roundoff, and is added to terms.
FP32_ROUNDOFF = 2.0**-24
FLUSHED = 2.0**-126 / FP32_ROUNDOFF


@dataclass(frozen=True)
class Setting:
    """The setting of comparisons: the kernel table, the trainer's configuration, a data type and a magnitude.

    magnitude: one of the claim's `magnitudes`. In most comparisons it is the standard deviation of the inputs.
    """

    table: KernelTable
    config: TrainConfig
    model: ModelConfig
    dtype_name: str
    magnitude: float
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    @property
    def exponent(self) -> float:
        """Return the weight of exponents' errors in terms: fp32's roundoff (exponents are fp32) / the data type's."""
        return torch.finfo(torch.float32).eps / torch.finfo(self.dtype).eps

    @property
    def tokens(self) -> int:
        return self.config.batch_size * self.config.seq_len

    def inputs(self, operation: str, shape: str) -> Inputs:
        """Return an `Inputs` for one case. Its seed depends on operation, shape and magnitude, so that cases differ."""
        seed = zlib.crc32(f"{operation} {shape} {self.magnitude}".encode())
        return Inputs(torch.Generator(self.device).manual_seed(seed), self.dtype)


@dataclass(frozen=True)
class Inputs:
    """Random tensors for one case. The memory before and after a tensor is NaN, so a kernel that reads outside of the
    tensor returns NaN."""

    generator: torch.Generator
    dtype: torch.dtype

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Return normally distributed numbers of standard deviation `scale`, rounded to `dtype` or `self.dtype`."""
        return self.between_nans(torch.randn(shape, generator=self.generator, device=self.device) * scale, dtype)

    def uniform(self, *shape: int, below: float) -> Tensor:
        """Return fp32 numbers in [0, below)."""
        return torch.rand(shape, generator=self.generator, device=self.device) * below

    def integers(self, *shape: int, below: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(0, below, shape, generator=self.generator, device=self.device, dtype=dtype)

    def gain(self, width: int) -> Tensor:
        """Return fp32 gains near 1 that bfloat16 represents exactly, because a peer may convert gains to bfloat16."""
        return self.between_nans(self.normal(width, scale=0.3, dtype=torch.float32).add(1).bfloat16(), torch.float32)

    def between_nans(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        count = math.prod(values.shape)
        size = count + 2 * _GUARD_ELEMENTS
        buffer = torch.full((size,), math.nan, dtype=dtype or self.dtype, device=self.device)
        return buffer[_GUARD_ELEMENTS : _GUARD_ELEMENTS + count].view(values.shape).copy_(values)

    @property
    def device(self) -> torch.device:
        return self.generator.device
