"""Data-parallel ranks: each rank trains on its rows of every batch, and one sum gives the whole batch's gradient.

Each rank divides its loss by the number of tokens of all ranks, as `Accumulation` divides by the tokens of all
micro-batches. So a plain sum over ranks is the gradient of the mean over the whole batch, even if ranks have different
numbers of tokens. All trainable gradients are in one flat buffer, so a step has one all-reduce. The all-reduce runs
before the clip: every rank clips the same gradient by the same norms, and replicas stay bitwise equal without a
comparison.

The sum of two ranks has one result, because addition commutes. With more ranks NCCL chooses the order of additions, and
chooses the same order for every call with the same size. Sums within the NVLink switch (NVLS) have an order that
software cannot know, so NVLS is switched off.

The all-reduce is torch's functional one: an operator on tensors, with its wait as a second operator. A CUDA graph
captures both operators, and a traced recording repeats both. (`torch.distributed.all_reduce` waits in Python, and a
recording does not contain that wait.)
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from harness.system.ranks import rank, share, world_size


class Ranks:
    """The number of this rank, and the count of ranks that train together. They are torch's default process group."""

    def __init__(self) -> None:
        self.rank, self.count = rank(), world_size()
        self._group = dist.group.WORLD.group_name  # type: ignore[union-attr]

    @classmethod
    def of_this_process(cls) -> Ranks | None:
        """Return the `Ranks` of this process, or None if it trains alone."""
        return cls() if world_size() > 1 else None

    def rows(self, batch: Tensor) -> Tensor:
        """Return this rank's rows [B / ranks, S] of a whole batch [B, S]; rank 0 has the first rows."""
        return batch[share(batch.shape[0])]

    def sum_(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over all ranks. The current stream waits for it; on a GPU the host does not."""
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce_(tensor, "sum", self._group))
