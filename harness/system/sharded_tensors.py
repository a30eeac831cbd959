"""Read tensors of torch's class DTensor. Each rank holds a part of such a tensor.

FSDP2 turns parameters, gradients and moments into DTensors. A placement states, for each dimension of the mesh of
ranks, whether the ranks hold parts (`Shard`, `Partial`) or the same elements (`Replicate`). Replicated elements can be
compared between ranks. Parts differ between ranks, so the parts must be gathered before a comparison. Importing this
module needs no torch, and no function here imports DTensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def is_distributed(tensor: Tensor) -> bool:
    """Return True if the tensor is a DTensor, with any placements."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_replicated(tensor: Tensor) -> bool:
    """Return True if another rank holds the same elements as this rank. A plain tensor counts as replicated."""
    if not is_distributed(tensor):
        return True
    spread: Any = tensor
    sizes = spread.device_mesh.shape
    return any(place.is_replicate() and size > 1 for place, size in zip(spread.placements, sizes, strict=True))


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, in the same memory. Return a plain tensor unchanged. No rank needs to
    communicate."""
    if not is_distributed(tensor):
        return tensor
    spread: Any = tensor.detach()
    part: Tensor = spread.to_local()
    return part


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a DTensor, gathered from all ranks. Return a plain tensor unchanged.

    Every rank of the mesh must call this function for the same tensors in the same order. If several ranks hold the
    same part, each rank uses its own copy.
    """
    if not is_distributed(tensor):
        return tensor
    spread: Any = tensor.detach()
    gathered: Tensor = spread.full_tensor()
    return gathered


def elements(tensors: Iterable[Tensor]) -> tuple[int, int]:
    """Return how many elements of these tensors this rank holds, and how many elements the whole tensors have."""
    each = [(local(tensor).numel(), tensor.numel()) for tensor in tensors]
    return sum(held for held, _ in each), sum(number for _, number in each)
