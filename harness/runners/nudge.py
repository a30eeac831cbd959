"""Start an arm a rounding away from where its system put it: what it then trains otherwise, rounding trains otherwise.

Every element is multiplied by 1 + e or 1 - e, by signs that its name and place give: alike in every process and rank.
e is 8 epsilons of float32 (2^-20, about 1e-6: as much as some steps' roundings), of a coarser type one epsilon.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from harness.runners.state_watch import named_parameters
from harness.system.protocol import TrainingRun
from harness.system.shards import local

FLOAT32_EPSILONS = 8


def nudge(training: TrainingRun) -> None:
    """Multiply the trainable parameters, in place; those of integers or 8-bit floats stay. Zeros stay zero."""
    with torch.no_grad():
        for name, tensor in named_parameters(training).items():
            part = local(tensor)
            size = _size(part.dtype)
            if size is not None:
                part.mul_(1 + size * _signs(name, part))


def _size(dtype: torch.dtype) -> float | None:
    if not (dtype.is_floating_point or dtype.is_complex) or dtype.itemsize == 1:
        return None
    return max(FLOAT32_EPSILONS * torch.finfo(torch.float32).eps, torch.finfo(dtype).eps)


def _signs(name: str, part: Tensor) -> Tensor:
    """1 or -1 for each element, in a type that holds 1 + e; drawn by a generator of its own."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    signs = torch.randint(0, 2, part.shape, generator=generator, dtype=torch.int8) * 2 - 1
    return signs.to(part.device, torch.float64 if part.dtype in (torch.float64, torch.complex128) else torch.float32)
