"""Give a system access to its ranks, the processes that train one model together. Importing this module needs no torch.

The harness starts the ranks with the environment variables that `torchrun` sets. It adds the ranks to torch's default
process group before it opens an arm with `ranks: N`. A step function needs one line: `model = data_parallel(model)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from harness.system.batches import leaves, replaced

if TYPE_CHECKING:
    from torch import nn

    Batch = Any  # a structure that the module `batches` can split

_model_parallel = 1  # number of neighboring ranks that hold one model together and read the same rows of each batch
_read_for: int | None = None  # the rank whose rows of each batch this rank reads; None: its own; only a fault sets this


def world_size() -> int:
    """Return how many ranks train together; 1 if only this process trains."""
    group = _group()
    return 1 if group is None else group.get_world_size()


def rank() -> int:
    """Return this process's number among the ranks, from 0."""
    group = _group()
    return 0 if group is None else group.get_rank()


def share(length: int) -> slice:
    """Return this rank's slice of a batch of `length` rows. Each rank gets contiguous rows, in the order of the ranks.

    Ranks that hold one model together get the same rows. Raise ValueError if `length` rows cannot be shared equally.
    """
    shares = world_size() // _model_parallel
    if length % shares:
        raise ValueError(
            f"ranks must take {shares} equal shares of a batch, but its {length} rows are not a multiple of {shares}; "
            f"use a batch size that is a multiple of {shares}"
        )
    rows, reader = length // shares, (rank() if _read_for is None else _read_for) // _model_parallel
    return slice(reader * rows, (reader + 1) * rows)


def data_parallel(model: nn.Module) -> nn.Module:
    """Return the model under torch's DistributedDataParallel if there are several ranks, else the model itself."""
    if world_size() == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    device = next(model.parameters()).device
    return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)


def shared(batch: Callable[[int], Batch], batch_size: int) -> Callable[[int], Batch]:
    """Return a function that returns this rank's rows of each batch.

    The function splits the tensors that have `batch_size` rows. If no tensor has `batch_size` rows, it splits all
    tensors that have as many rows as the first tensor by name. All other tensors stay whole on every rank.
    """
    if world_size() == 1:
        return batch

    @wraps(batch)
    def of_this_rank(index: int) -> Batch:
        whole = batch(index)
        tensors = {name: each for name, each in leaves(whole) if hasattr(each, "dim")}
        lengths = {name: len(tensor) for name, tensor in sorted(tensors.items()) if tensor.dim()}
        rows = batch_size if batch_size in lengths.values() else next(iter(lengths.values()), 0)
        shares = {name: tensors[name][share(rows)] for name, length in lengths.items() if length == rows}
        return replaced(whole, shares)

    return of_this_rank


def hold_together(ranks: int) -> None:
    """Make `share` return the same rows for each group of `ranks` neighboring ranks, which hold one model together."""
    global _model_parallel  # noqa: PLW0603 - one process is one rank, so one value is enough
    _model_parallel = ranks


@contextmanager
def reading_for(other: int) -> Iterator[None]:
    """Make `share` return the rows of rank `other` within the `with` block. Only planted faults use this."""
    global _read_for  # noqa: PLW0603 - one process is one rank, so one value is enough
    before, _read_for = _read_for, other
    try:
        yield
    finally:
        _read_for = before


def _group() -> Any:
    """Return `torch.distributed` if it has a default process group, else None. Do not import torch."""
    import sys

    distributed: Any = sys.modules.get("torch.distributed")
    known = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if known else None
