"""What torch looks up on a CPU and never on a GPU, so that a CPU, which stands in for one, need not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.system.replay.as_written import as_written


class WithoutCpuChecks(TorchFunctionMode):
    """Within its block `one_hot` with a number of classes reads no value on the host, as on a GPU.

    On a CPU torch reads the least and the greatest class first, to check them.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.one_hot:
            return _one_hot(*args, **kwargs)
        return func(*args, **kwargs)


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """Execute a step so that a dispatch mode on a CPU sees what it would see of a device; without a mode do nothing.

    A function mode is called at every operation and at every attribute of a tensor that is read. torch.compile would
    trace through it, and compile anew.
    """
    if not torch._C._len_torch_dispatch_stack():
        yield
        return
    with as_written(), WithoutCpuChecks():
        yield


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:  # as many as the greatest one says: a GPU waits for it, too
        return torch.nn.functional.one_hot(tensor, num_classes)
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()
