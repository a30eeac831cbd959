"""Ask torch's caching allocator what it holds of the CUDA device's memory, and make it give back what is unused."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from harness.devices.device import has_cuda, synchronize
from harness.evidence.arm_records import MemorySample


class Growth(NamedTuple):
    """Bytes that some work made torch reserve at its peak, by pool, and at its end, and that the device lost.

    `segments` are the sizes of the large pool's driver allocations that came and were there at the end.
    """

    large: int
    small: int
    reserved: int
    taken: int
    segments: list[int]


def empty_cache() -> None:
    """Give the driver back what the allocator has cached; without a device there is nothing."""
    torch.cuda.empty_cache()


def reset_peaks() -> None:
    """Let the allocator's peaks begin anew."""
    torch.cuda.reset_peak_memory_stats()


def free_bytes(device: torch.device | None = None) -> int:
    """Return what the driver has free on a device, by default the current one. Raises torch's error without CUDA."""
    return torch.cuda.mem_get_info(device)[0]


def reserved_bytes() -> int:
    """Return what the allocator holds of the device, its cache included; 0 without a device."""
    return torch.cuda.memory_reserved()


def memory_sample(step: int) -> MemorySample | None:
    """Return torch's own count of CUDA memory now; None without CUDA.

    One call builds all that it counts, without a host sync.
    """
    if not has_cuda():
        return None
    counted = torch.cuda.memory_stats_as_nested_dict()
    allocated, reserved = (
        counted[name]["all"]["current"] if name in counted else 0 for name in ("allocated_bytes", "reserved_bytes")
    )
    return MemorySample(step=step, allocated_bytes=allocated, reserved_bytes=reserved)


def growth(work: Callable[[], object]) -> Growth:
    """Execute `work`, which waits for the device, and return the memory that it took.

    Nothing else may use the device meanwhile: what it lost is known by the whole device's free memory.
    """
    synchronize()
    empty_cache()
    reset_peaks()
    before, free_before = torch.cuda.memory_stats(), free_bytes()
    known = _large_segments()
    work()
    after, free_after = torch.cuda.memory_stats(), free_bytes()
    segments = [size for address, size in _large_segments().items() if address not in known]
    large, small = (
        after[f"reserved_bytes.{pool}_pool.peak"] - before[f"reserved_bytes.{pool}_pool.current"]
        for pool in ("large", "small")
    )
    reserved = after["reserved_bytes.all.current"] - before["reserved_bytes.all.current"]
    return Growth(large, small, reserved, free_before - free_after, segments)


def _large_segments() -> dict[int, int]:
    """Return bytes by address of the driver's memory that torch's large pools hold, those of graphs too."""
    snapshot = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return {one["address"]: one["total_size"] for one in snapshot if one["segment_type"] == "large"}
