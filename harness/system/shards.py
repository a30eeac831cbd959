"""Tensors of which each rank holds a part: torch's DTensor, as FSDP2 makes of parameters, gradients and moments.

A placement says for each dimension of the mesh of ranks whether its ranks hold parts (`Shard`, `Partial`) or the same
elements (`Replicate`). What every rank holds alike can be compared between ranks; of a part there is no second one, so
it is compared once it is gathered. Importing this needs no torch, and asking does not import DTensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of whatever placements."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_replicated(tensor: Tensor) -> bool:
    """Whether another rank holds the elements that this one holds; so it is of every plain tensor."""
    if not is_distributed(tensor):
        return True
    spread: Any = tensor
    sizes = spread.device_mesh.shape
    return any(place.is_replicate() and size > 1 for place, size in zip(spread.placements, sizes, strict=True))


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it, in the same memory; a plain tensor itself. No communication, no host sync."""
    if not is_distributed(tensor):
        return tensor
    spread: Any = tensor.detach()
    part: Tensor = spread.to_local()
    return part


def address(tensor: Tensor) -> int:
    """Where this rank's part of it begins, without an operation: beside a replay those of the step are counted."""
    held: Any = tensor
    part: Tensor = held._local_tensor if is_distributed(tensor) else tensor
    return part.data_ptr()


def whole(tensor: Tensor) -> Tensor:
    """All elements, gathered from the ranks that hold the parts: every rank of its mesh calls this, in one order. Of
    ranks that hold the same part each takes its own. A plain tensor itself.
    """
    if not is_distributed(tensor):
        return tensor
    spread: Any = tensor.detach()
    gathered: Tensor = spread.full_tensor()
    return gathered


def elements(tensors: Iterable[Tensor]) -> tuple[int, int]:
    """How many elements this rank holds of them, and how many there are."""
    each = [(local(tensor).numel(), tensor.numel()) for tensor in tensors]
    return sum(held for held, _ in each), sum(number for _, number in each)
