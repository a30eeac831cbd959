"""Measure the most device memory that a process holds at one time, by the harness's own account.

torch keeps the peaks of its allocator, but any code may reset them. So the watch reads them before
each reset that it sees, and notes statistics that fell without one. Only the driver knows what is
allocated without torch: a thread samples it through NVML, which no stream capture notices.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property

# bound here, before a system is imported: it could replace them in their module
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch

from harness.evidence.arm_records import MemoryPeak, PeakMemoryEvidence

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

INTERVAL_S = 0.002  # between samples of the device; a read of NVML takes 0.05 ms


class Levels(NamedTuple):
    """Bytes that torch's allocator gave away, and that it took of the device."""

    allocated: int
    reserved: int


class DeviceMemory(Protocol):
    """What a process can know of its device's memory."""

    def peaks(self) -> Levels:
        """Return the largest levels since the last reset."""
        ...

    def reserved(self) -> int: ...

    def reset_peaks(self) -> None: ...

    def watch_resets(self, around: Callable[[Callable[[], object]], object]) -> AbstractContextManager[None]:
        """Pass every reset but `reset_peaks` within the block to `around`, which calls the reset."""
        ...

    def apart(self) -> AbstractContextManager[None]:
        """Let what is allocated within the block leave nothing in the allocator's cache."""
        ...

    def used(self) -> bool:
        """Return True if this process uses the device by now."""
        ...

    def before(self) -> tuple[int | None, int | None]:
        """Return what `in_use` and `processes` gave before this process used the device."""
        ...

    def in_use(self) -> int | None:
        """Return the bytes that the driver has in use for all processes; None if not known."""
        ...

    def processes(self) -> int | None:
        """Return the number of processes on the device; None if not known."""
        ...

    def names(self) -> tuple[str, str]:
        """Return the name of the allocator's backend, and its settings."""
        ...


class PeakWatch:
    """Watches one process from before it uses the device; a context manager."""

    def __init__(self, device: DeviceMemory) -> None:
        self._device = device
        self._foreign: int | None = 0
        self._resets, self._lost = 0, 0
        self._largest = self._last = Levels(0, 0)
        self._in_use: int | None = None
        self._outside: int | None = None
        self._samples = 0
        self._lock = threading.RLock()
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        self._exit.enter_context(self._device.watch_resets(self._reset_by_another))
        return self

    def __exit__(self, *_raised: object) -> None:
        self._exit.close()

    def apart(self) -> AbstractContextManager[None]:
        """Keep what the harness itself allocates between two measurements out of the allocator's cache."""
        return self._device.apart()

    @contextmanager
    def measuring(self, keep: Callable[[MemoryPeak], None]) -> Iterator[None]:
        """Give `keep` the most memory that was held within the block."""
        with self._lock:
            self._device.reset_peaks()
            self._largest = self._last = Levels(0, 0)
            self._in_use = self._outside = None
            self._samples = 0
        over = threading.Event()
        sampler = threading.Thread(target=self._sample_until, args=(over,), name="peak memory", daemon=True)
        sampler.start()
        try:
            yield
        finally:
            over.set()
            sampler.join()
        self.look()
        keep(
            MemoryPeak(
                allocated_bytes=self._largest.allocated,
                reserved_bytes=self._largest.reserved,
                device_bytes=self._in_use,
                outside_bytes=self._outside,
                samples=self._samples,
            )
        )

    def look(self) -> None:
        """Read the peaks and what the device has in use now."""
        with self._lock:
            self._read_peaks()
            self._read_device()

    def evidence(self, arm: str, opening: MemoryPeak, steps: MemoryPeak) -> PeakMemoryEvidence:
        """Return the evidence of the whole run, with the peaks of its opening and of its steps."""
        allocator, settings = self._device.names()
        return PeakMemoryEvidence(
            arm=arm,
            replica=0,
            opening=opening,
            steps=steps,
            resets=self._resets,
            lost_peaks=self._lost,
            foreign_processes=self._foreign,
            allocator=allocator,
            allocator_settings=settings,
        )

    def _sample_until(self, over: threading.Event) -> None:
        while not over.wait(INTERVAL_S):
            self.look()

    def _reset_by_another(self, reset: Callable[[], object]) -> object:
        with self._lock:
            self._read_peaks()
            self._last = Levels(0, 0)
            self._resets += 1
            return reset()

    def _read_peaks(self) -> None:
        peaks = self._device.peaks()
        if peaks.allocated < self._last.allocated or peaks.reserved < self._last.reserved:
            self._lost += 1
        self._last = peaks
        self._largest = Levels(*map(max, self._largest, peaks))

    def _read_device(self) -> None:
        """Read torch's reserve before and after the driver; the larger one counts, since it may change meanwhile."""
        if not self._device.used():
            return
        before, others = self._device.before()
        reserved = self._device.reserved()
        in_use, processes = self._device.in_use(), self._device.processes()
        if others is None or processes is None:
            self._foreign = None
        elif self._foreign is not None:
            self._foreign = max(self._foreign, others, processes - 1)
        if in_use is None or before is None:
            return
        own = max(0, in_use - before)
        outside = max(0, own - max(reserved, self._device.reserved()))
        self._in_use, self._outside = max(self._in_use or 0, own), max(self._outside or 0, outside)
        self._samples += 1


# Ask torch and NVML about a CUDA device's memory, for `harness.devices.peak_watch`.

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
