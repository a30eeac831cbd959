"""Data-parallel ranks: each trains on rows of its own of every batch, and one sum makes their gradients those of it.

Each rank divides its loss by the tokens of all ranks, as `Accumulation` does by those of all micro-batches, so that a
plain sum over ranks is the gradient of the mean over the whole batch, whatever rank has how many tokens. All trainable
gradients lie in one flat buffer: a step has one all-reduce. It comes before the clip, so that every rank clips the
same gradient by the same norms, and replicas stay equal in bits without ever being compared.

The sum of two ranks has one result, since addition commutes. Of more ranks NCCL chooses the order, the same one for
each call of a size; sums within the switch (NVLS) have none that software knows, and are switched off.

The all-reduce is torch's functional one: an operator of tensors, with its wait as a second, which a CUDA graph captures
and a traced recording repeats, like any other operator. (`torch.distributed.all_reduce` waits in Python, of which a
recording sees nothing.)
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from harness.system.ranks import rank, share, world_size


class Ranks:
    """Return this process's place among the ranks of one training: those of torch's default process group."""

    def __init__(self) -> None:
        self.rank, self.count = rank(), world_size()
        self._group = dist.group.WORLD.group_name  # type: ignore[union-attr]

    @classmethod
    def of_this_process(cls) -> Ranks | None:
        """None where this process trains alone."""
        return cls() if world_size() > 1 else None

    def rows(self, batch: Tensor) -> Tensor:
        """Return this rank's rows of a whole batch [B, S]: [B / ranks, S]; rank 0 has the first ones."""
        return batch[share(batch.shape[0])]

    def sum_(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over all ranks; the current stream waits for it, on a GPU the host does not."""
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce_(tensor, "sum", self._group))
