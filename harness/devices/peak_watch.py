"""Measure the peak of a process's device memory independently of the measured code.

torch records the peaks of its allocator, but any code may reset these peaks. `PeakWatch` therefore reads the peaks
before each reset that it observes, and counts how often the peaks decreased without an observed reset. Memory that is
allocated without torch is known only to the driver. A thread reads the driver's count of used bytes at intervals
through NVML, which disturbs no capture.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property

# Import these functions before user code is imported, because user code could replace them in their module.
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch

from harness.evidence.arm_records import MemoryPeak, PeakMemoryEvidence

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

INTERVAL_S = 0.002  # seconds between two samples of the device's memory; an NVML call takes 0.05 ms


class Levels(NamedTuple):
    """Two numbers of bytes: those that torch's allocator gave to tensors, and those that it reserved on the device."""

    allocated: int
    reserved: int


class DeviceMemory(Protocol):
    """A source of numbers about the memory of the device that this process uses."""

    def peaks(self) -> Levels:
        """Return the highest values of both levels since the last reset of the peaks."""
        ...

    def reserved(self) -> int: ...

    def reset_peaks(self) -> None: ...

    def watch_resets(self, around: Callable[[Callable[[], object]], object]) -> AbstractContextManager[None]:
        """Within the `with` block, pass every reset of the peaks by other code to the function `around`. The reset is
        passed as a function, which `around` must call."""
        ...

    def apart(self) -> AbstractContextManager[None]:
        """Within the `with` block, allocate memory outside of the allocator's cache, so that the cache does not
        grow."""
        ...

    def used(self) -> bool:
        """Return True if this process has used the device."""
        ...

    def before(self) -> tuple[int | None, int | None]:
        """Return the values that `in_use` and `processes` had before this process used the device."""
        ...

    def in_use(self) -> int | None:
        """Return the bytes that all processes together use on the device, or None if unknown."""
        ...

    def processes(self) -> int | None:
        """Return the number of processes on the device, or None if unknown."""
        ...

    def names(self) -> tuple[str, str]:
        """Return the name of torch's allocator backend, and the settings of the allocator."""
        ...


class PeakWatch:
    """Measures peaks of this process's device memory. Enter this context manager before the process uses the device."""

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
        """Within the `with` block, keep allocations out of torch's cache. The harness makes its own allocations between
        two measurements in such a block."""
        return self._device.apart()

    @contextmanager
    def measuring(self, keep: Callable[[MemoryPeak], None]) -> Iterator[None]:
        """Measure the peak during the `with` block, and pass the result to `keep`."""
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
        """Read torch's peaks and the memory in use on the device. Keep the largest values."""
        with self._lock:
            self._read_peaks()
            self._read_device()

    def evidence(self, arm: str, opening: MemoryPeak, steps: MemoryPeak) -> PeakMemoryEvidence:
        """Return the evidence about the peaks of an arm. opening: the peak while the arm was opened. steps: the peak
        during the arm's steps."""
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
        """Read the driver's numbers of used bytes and of processes, and update the largest values. The memory outside
        torch is the memory that the process uses minus the memory that torch has reserved. The reserved memory is read
        before and after the used bytes, and the larger value counts."""
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


# The code below reads a CUDA device's memory use from torch and NVML, for the classes above.

# A GPU's memory use counts as constant after REST_S seconds without a change. The harness waits for a constant memory
# use, but at most REST_LIMIT_S seconds.
REST_S, REST_LIMIT_S = 0.2, 5.0
SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class CudaMemory:
    """The memory of the current CUDA device, or of device `number`, as torch and NVML report it.

    A rank (one of several training processes) must give the number of its device, because in a new thread the current
    device is device 0. The object creates no CUDA context, because a system may still configure torch's allocator
    before the device is first used.
    """

    def __init__(self, number: int | None = None) -> None:
        self._number = number
        self._gpus = _Nvml()
        self._in_use, self._processes = self._gpus.at_rest()
        self._reset_stats: Callable[[int], None] = vars(torch._C)["_cuda_resetPeakMemoryStats"]

    @cached_property
    def _uuid(self) -> str:
        """Return the UUID of the device. Call this only after the device was used."""
        return f"GPU-{torch.cuda.get_device_properties(self._device()).uuid}"

    def _device(self) -> int:
        return torch.cuda.current_device() if self._number is None else self._number

    def used(self) -> bool:
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def peaks(self) -> Levels:
        if not self.used():  # without this check, the call below would initialize CUDA
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
        """Within the `with` block, pass each reset of the peaks to `around`. Every Python function of torch that resets
        the peaks calls one of the functions in `_RESETS`, which are replaced."""
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
        """Within the `with` block, allocate from a separate pool, whose memory is freed afterwards."""
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
    """Memory use and number of processes on each GPU, from NVML, by UUID. Both dictionaries are empty without NVML."""

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
        """Return the bytes in use on each GPU. The keys are the GPUs' UUIDs."""
        return self._asked(lambda handle: int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used))

    def processes(self) -> dict[str, int]:
        """Return the number of processes on each GPU. The keys are the GPUs' UUIDs."""
        return self._asked(lambda handle: len(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)))

    def at_rest(self) -> tuple[dict[str, int], dict[str, int]]:
        """Wait until the memory use of the GPUs does not change any more. Then return `in_use` and `processes`. The
        wait is needed because the memory of a process is freed some time after the process has ended."""
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
