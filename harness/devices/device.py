"""Access the CUDA device of this process through torch, and wait for its work. Without a CUDA device, the functions
that wait return at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

# Keep torch's functions here before user code is imported, because user code could replace them in torch's module.
_is_available, _synchronize = torch.cuda.is_available, torch.cuda.synchronize


@cache  # cached, because the devices of a process do not change
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
    """A copy of a device's tensor in the host's memory. The copy is asynchronous: the constructor does not wait for
    it."""

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
    """Return, for each CUDA device, a function that reads the state of its random generator and a function that sets
    this state. The keys are the generators' names. The dictionary is empty until the process has used CUDA."""
    if not (has_cuda() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return {}
    return {f"torch.cuda:{index}": _generator(index) for index in range(torch.cuda.device_count())}


def _generator(index: int) -> tuple[Callable[[], Tensor], Callable[[Tensor], None]]:
    return lambda: torch.cuda.get_rng_state(index), lambda state: torch.cuda.set_rng_state(state, index)
