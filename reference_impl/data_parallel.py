"""Train with data-parallel ranks. Each rank trains on its rows of every batch, and the ranks' gradients are summed.

Each rank divides its loss by the number of tokens of all ranks, as `Accumulation` divides by the tokens of all
micro-batches. Therefore the sum over ranks is the gradient of the mean over the whole batch, even if ranks have
different numbers of tokens. All trainable gradients are in one flat buffer, so a step has one all-reduce. The
all-reduce runs before the clip. Therefore every rank clips the same gradient by the same norms, and all models stay
bitwise equal.

With two ranks, the order of additions does not change the sum, because addition commutes. With more ranks NCCL chooses
the order, and chooses the same order for every call with the same size. The NVLink switch can also compute sums (NVLS),
but in an order that software cannot know. NVLS is therefore switched off.

The all-reduce is torch's functional all-reduce: one operator starts the sum, and a second operator waits for the
result. A CUDA graph captures both operators, and a traced recording repeats both. (`torch.distributed.all_reduce` waits
in Python, and a recording would not contain this wait.)
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from harness.system.ranks import rank, share, world_size


class Ranks:
    """The number of this process's rank, and the count of all ranks that train together, from torch's default process
    group."""

    def __init__(self) -> None:
        self.rank, self.count = rank(), world_size()
        self._group = dist.group.WORLD.group_name  # type: ignore[union-attr]

    @classmethod
    def of_this_process(cls) -> Ranks | None:
        """Return the `Ranks` of this process, or None if it trains alone."""
        return cls() if world_size() > 1 else None

    def rows(self, batch: Tensor) -> Tensor:
        """Return this rank's share [B / ranks, S] of the rows of a whole batch [B, S]. Rank 0 gets the first rows."""
        return batch[share(batch.shape[0])]

    def sum_(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over all ranks. The current stream waits for this sum. On a GPU the host does
        not wait."""
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce_(tensor, "sum", self._group))
