"""The most device memory that a process holds at one time, kept by the harness's own account.

torch keeps the peaks of its allocator, and anybody may set them back: what they were is read before each reset that is
seen, and statistics that fell without one are noted. What is allocated behind torch's back only the driver knows: a
thread samples it through NVML, which no stream capture notices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

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
        """The largest since the last reset."""
        ...

    def reserved(self) -> int: ...

    def reset_peaks(self) -> None: ...

    def watch_resets(self, around: Callable[[Callable[[], object]], object]) -> AbstractContextManager[None]:
        """Within the block `around` is given every reset but `reset_peaks`, in its place, and calls it."""
        ...

    def apart(self) -> AbstractContextManager[None]:
        """What is allocated within the block leaves nothing in the allocator's cache."""
        ...

    def used(self) -> bool:
        """Whether this process uses the device by now."""
        ...

    def before(self) -> tuple[int | None, int | None]:
        """What `in_use` and `processes` gave before it did."""
        ...

    def in_use(self) -> int | None:
        """Bytes that the driver has in use for all processes; None: not known."""
        ...

    def processes(self) -> int | None:
        """Processes on the device; None: not known."""
        ...

    def names(self) -> tuple[str, str]:
        """The allocator's backend, and its settings."""
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
        """For what the harness itself allocates between two stretches."""
        return self._device.apart()

    @contextmanager
    def measuring(self, keep: Callable[[MemoryPeak], None]) -> Iterator[None]:
        """Give `keep` the most that was held within the block."""
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
        """Of the whole run."""
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
        """Torch's reserve is read before and after the driver, and the larger counts: it may change meanwhile."""
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
