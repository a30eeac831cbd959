"""Ask torch and NVML about a CUDA device's memory, for `harness.devices.peak_watch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

# bound here, before a system is imported: it could replace them in their module
from time import monotonic, sleep
from typing import Any

import torch

from harness.devices.peak_watch import Levels

REST_S, REST_LIMIT_S = 0.2, 5.0  # the device is at rest once nothing changed for so long
SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class CudaMemory:
    """The current CUDA device, or the one of that number, by torch and by NVML.

    A rank needs its number, since a thread that samples begins at device 0. It makes no context: a system may set
    torch's allocator up before the first use.
    """

    def __init__(self, number: int | None = None) -> None:
        self._number = number
        self._gpus = _Nvml()
        self._in_use, self._processes = self._gpus.at_rest()
        self._reset_stats: Callable[[int], None] = vars(torch._C)["_cuda_resetPeakMemoryStats"]

    @cached_property
    def _uuid(self) -> str:
        """Return the UUID of the device. Ask for it once the device is used."""
        return f"GPU-{torch.cuda.get_device_properties(self._device()).uuid}"

    def _device(self) -> int:
        return torch.cuda.current_device() if self._number is None else self._number

    def used(self) -> bool:
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def peaks(self) -> Levels:
        if not self.used():  # to ask for the current device is the first use
            return Levels(0, 0)
        counted = torch.cuda.memory_stats_as_nested_dict(self._device())
        found = (counted[f"{name}_bytes"]["all"]["peak"] if counted else 0 for name in ("allocated", "reserved"))
        return Levels(*found)

    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self._device())

    def reset_peaks(self) -> None:
        if self.used():
            self._reset_stats(self._device())

    @contextmanager
    def watch_resets(self, around: Callable[[Callable[[], object]], object]) -> Iterator[None]:
        """Give each reset to `around`. All functions of torch in Python, old and new, call one of these in the end."""
        originals = {name: getattr(torch._C, name) for name in _RESETS if hasattr(torch._C, name)}
        for name, original in originals.items():
            setattr(torch._C, name, _told(original, around))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(torch._C, name, original)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Allocate within the block in a pool of its own, which the allocator gives back."""
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            yield
        torch.cuda.synchronize()
        del pool

    def before(self) -> tuple[int | None, int | None]:
        return self._in_use.get(self._uuid), self._processes.get(self._uuid)

    def in_use(self) -> int | None:
        return self._gpus.in_use().get(self._uuid)

    def processes(self) -> int | None:
        return self._gpus.processes().get(self._uuid)

    def names(self) -> tuple[str, str]:
        settings = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
        return torch.cuda.get_allocator_backend(), " ".join(settings)


_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


def _told(original: Callable[..., object], around: Callable[[Callable[[], object]], object]) -> Callable[..., object]:
    def reset(*arguments: object) -> object:
        return around(lambda: original(*arguments))

    return reset


class _Nvml:
    """NVML's count of memory and processes, by the GPU's UUID; nothing where NVML cannot be asked."""

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        self._handles: dict[str, Any] = {}
        try:
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._handles[str(pynvml.nvmlDeviceGetUUID(handle))] = handle
        except pynvml.NVMLError:
            self._handles = {}

    def in_use(self) -> dict[str, int]:
        """Return the bytes in use on each GPU, by its UUID."""
        return self._asked(lambda handle: int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used))

    def processes(self) -> dict[str, int]:
        """Return the number of processes on each GPU, by its UUID."""
        return self._asked(lambda handle: len(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)))

    def at_rest(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return both, once the bytes stay the same: memory of an ended process is given back a little later."""
        began = since = monotonic()
        found = self.in_use()
        while monotonic() - since < REST_S and monotonic() - began < REST_LIMIT_S:
            sleep(REST_S / 10)
            now = self.in_use()
            if now != found:
                found, since = now, monotonic()
        return found, self.processes()

    def _asked(self, question: Callable[[Any], int]) -> dict[str, int]:
        found = {}
        for uuid, handle in self._handles.items():
            try:
                found[uuid] = question(handle)
            except self._nvml.NVMLError:
                continue
        return found
