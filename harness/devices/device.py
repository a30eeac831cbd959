"""Ask torch for this process's CUDA device, and wait for it. Without a device there is nothing to wait for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

# bound here, before a system is imported: it could replace them in their module
_is_available, _synchronize = torch.cuda.is_available, torch.cuda.synchronize


@cache  # a device neither comes nor goes while a process runs
def has_cuda() -> bool:
    """Return True if torch can use a CUDA device."""
    return _is_available()


def synchronize() -> None:
    """Wait until the device has done all that was enqueued."""
    if has_cuda():
        _synchronize()


def wait_for(tensor: Tensor) -> None:
    """Wait until the tensor's device has done all that was enqueued; a tensor on the host is there already."""
    if tensor.is_cuda:
        _synchronize(tensor.device)


class HostCopy:
    """A copy of a tensor in the host's memory. It is on its way while the device works on."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy, self._arrived = tensor, None
        if tensor.is_cuda:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            with torch.cuda.device(tensor.device):
                self._copy.copy_(tensor, non_blocking=True)
                self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._arrived.record()

    def has_arrived(self) -> bool:
        """Return True if all of it is in the host's memory."""
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def tensor(self) -> Tensor:
        """Wait until all of it has arrived, and return it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy


def select(index: int) -> torch.device | None:
    """Make the device of that number this process's current one and return it; None without CUDA."""
    if not has_cuda():
        return None
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def generators() -> dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]]:
    """Return, by name, how to read and set each device's random generator; none before the devices are used."""
    if not (has_cuda() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return {}
    return {f"torch.cuda:{index}": _generator(index) for index in range(torch.cuda.device_count())}


def _generator(index: int) -> tuple[Callable[[], Tensor], Callable[[Tensor], None]]:
    return lambda: torch.cuda.get_rng_state(index), lambda state: torch.cuda.set_rng_state(state, index)
