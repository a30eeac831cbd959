"""Access this process's CUDA device through torch, and wait for it.

Without a device, waiting functions return at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

# Bind these functions before a system is imported. Otherwise a system could replace them in torch's module.
_is_available, _synchronize = torch.cuda.is_available, torch.cuda.synchronize


@cache  # cached, because the devices do not change while a process runs
def has_cuda() -> bool:
    """Return True if torch can use a CUDA device."""
    return _is_available()


def synchronize() -> None:
    """Wait until the device has finished all submitted work."""
    if has_cuda():
        _synchronize()


def wait_for(tensor: Tensor) -> None:
    """Wait until the tensor's device has finished all submitted work. For a tensor on the host, return at once."""
    if tensor.is_cuda:
        _synchronize(tensor.device)


class HostCopy:
    """A copy of a tensor in the host's memory, made asynchronously. The device continues to work during the copy."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy, self._arrived = tensor, None
        if tensor.is_cuda:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            with torch.cuda.device(tensor.device):
                self._copy.copy_(tensor, non_blocking=True)
                self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._arrived.record()

    def has_arrived(self) -> bool:
        """Return True if the copy is complete."""
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def tensor(self) -> Tensor:
        """Wait until the copy is complete, and return the copied tensor."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy


def select(index: int) -> torch.device | None:
    """Make device `index` the current device of this process. Return the device, or None without CUDA."""
    if not has_cuda():
        return None
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def generators() -> dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]]:
    """Return a reader and a setter of each CUDA device's random generator state, by name of the generator.

    The dictionary is empty as long as CUDA was not used.
    """
    if not (has_cuda() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return {}
    return {f"torch.cuda:{index}": _generator(index) for index in range(torch.cuda.device_count())}


def _generator(index: int) -> tuple[Callable[[], Tensor], Callable[[Tensor], None]]:
    return lambda: torch.cuda.get_rng_state(index), lambda state: torch.cuda.set_rng_state(state, index)
