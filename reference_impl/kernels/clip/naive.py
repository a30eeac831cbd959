"""Gradient clipping over one flat buffer, in plain torch and without a host sync.

P parts ("partials") of at most BLOCK elements each, G groups (layers, or the whole model for a global norm). Part p
contains ``flat[starts[p] : starts[p] + counts[p]]``. Group g contains the parts from ``group_starts[g]`` up to, but not
including, ``group_starts[g + 1]``. An empty tensor has no part, so it adds exactly 0 to the norm of its group.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1024


def _elements(starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices [P, BLOCK] of the elements of each part, and a mask that is True for valid indices.

    Invalid indices repeat the first index of the part.
    """
    lane = torch.arange(BLOCK, device=starts.device)
    exists = lane < counts[:, None]
    return torch.where(exists, starts[:, None] + lane, starts[:, None]), exists


def squared_sum_partials(flat: Tensor, starts: Tensor, counts: Tensor, out: Tensor) -> Tensor:
    """Write the sum of squares of each part of ``flat`` [elements] into out [parts]; return out. starts int64 [parts]:
    first element of each part. counts int32 [parts]: number of elements of each part."""
    index, exists = _elements(starts, counts)
    return out.copy_(torch.where(exists, flat[index].square(), 0).sum(dim=1))


def clip_scale_reduce(
    partials: Tensor, group_starts: Tensor, max_norm: float, eps: float, norms: Tensor, scales: Tensor
) -> None:
    """Write norms[g] = sqrt(sum of partials in group g) and scales[g] = min(1, max_norm / (norms[g] + eps)).

    partials [parts], group_starts int32 [groups + 1], norms and scales [groups]. A NaN norm gives a NaN scale.
    """
    partial = torch.arange(partials.numel(), device=partials.device)
    inside = (partial >= group_starts[:-1, None]) & (partial < group_starts[1:, None])
    norms.copy_(torch.where(inside, partials, 0).sum(dim=1).sqrt())
    scales.copy_((max_norm / (norms + eps)).clamp(max=1.0))


def scale_apply_(flat: Tensor, scales: Tensor, starts: Tensor, counts: Tensor, groups: Tensor) -> None:
    """Multiply each element of ``flat`` in place by its group's scale. groups int32 [parts]: the group of each part."""
    index, exists = _elements(starts, counts)
    factor = torch.ones_like(flat)
    # Invalid indices repeat the first index of the part, and write the factor that this element gets anyway.
    factor[index.flatten()] = scales[groups][:, None].expand_as(exists).flatten()
    flat.mul_(factor)
