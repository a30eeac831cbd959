"""Measure the device memory of torch's allocator, fill the device's memory, and guard the outputs of kernels."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.devices.cuda_driver import DriverError
from harness.devices.device import has_cuda, synchronize
from harness.evidence.arm_records import MemorySample

# Find out how much of the CUDA device's memory torch's caching allocator holds, and make it release unused memory.


class Growth(NamedTuple):
    """The memory that some work took, in bytes.

    large, small: growth of the peak reservation in torch's pools for large and for small blocks. reserved: growth of
    torch's reservation. taken: by how much the device's free memory decreased. segments: sizes of the driver
    allocations that the work added to the large pool and that still existed at the end.
    """

    large: int
    small: int
    reserved: int
    taken: int
    segments: list[int]


def empty_cache() -> None:
    """Return the allocator's cached memory to the driver. Do nothing without a device."""
    torch.cuda.empty_cache()


def reset_peaks() -> None:
    """Reset the allocator's peaks to the current values."""
    torch.cuda.reset_peak_memory_stats()


def free_bytes(device: torch.device | None = None) -> int:
    """Return the driver's free bytes on a device, by default the current device. Raises torch's error without CUDA."""
    return torch.cuda.mem_get_info(device)[0]


def reserved_bytes() -> int:
    """Return the bytes of the device that the allocator has reserved, including its cache; 0 without a device."""
    return torch.cuda.memory_reserved()


def memory_sample(step: int) -> MemorySample | None:
    """Return torch's own counts of CUDA memory at this moment; None without CUDA.

    One call of torch gives all counts, without a host sync.
    """
    if not has_cuda():
        return None
    counted = torch.cuda.memory_stats_as_nested_dict()
    allocated, reserved = (
        counted[name]["all"]["current"] if name in counted else 0 for name in ("allocated_bytes", "reserved_bytes")
    )
    return MemorySample(step=step, allocated_bytes=allocated, reserved_bytes=reserved)


def growth(work: Callable[[], object]) -> Growth:
    """Execute `work`, which must wait for the device, and return the memory that the work took.

    No other process may use the device meanwhile, because free memory is measured for the whole device.
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
    """Return the segments of torch's large pools, including pools of graphs, as bytes by address."""
    snapshot = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return {one["address"]: one["total_size"] for one in snapshot if one["segment_type"] == "large"}


# Call libcuda directly. A failed `cudaMalloc` would leave an error that torch's next check raises.

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY, a CUresult of cuda.h
_FIRST_SIZE = 2**36  # size of the first allocation, in bytes
# Fewer than this number of bytes stay free. With 3 MB free on an H200, a Triton kernel can be loaded, but cuBLAS
# cannot be initialized.
LEFT_FREE = 2**22


def take(size: int) -> None:
    """Allocate `size` bytes from the driver and never free them. Raises DriverError if no such block is available."""
    if _allocate(ctypes.CDLL("libcuda.so.1"), size) is None:
        raise DriverError("cuMemAlloc_v2", _OUT_OF_MEMORY)


@contextmanager
def full(*, but: int = 0, library: Any = None) -> Iterator[None]:
    """Fill the memory of the current context's device within the block.

    but: bytes to leave free. In addition, less than LEFT_FREE bytes stay free. library: libcuda or a stand-in. Raises
    DriverError for any failure except running out of memory.
    """
    driver = ctypes.CDLL("libcuda.so.1") if library is None else library
    kept_free = [_allocate(driver, but)] if but else []
    taken: list[int | None] = []
    try:
        size = _FIRST_SIZE
        while size >= LEFT_FREE:
            address = _allocate(driver, size)
            if address is None:
                size //= 2
            else:
                taken.append(address)
        _free(driver, kept_free)
        kept_free = []
        yield
    finally:
        _free(driver, [*kept_free, *taken])


def _allocate(library: Any, size: int) -> int | None:
    address = ctypes.c_uint64()
    code = library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if code == _OUT_OF_MEMORY:
        return None
    if code != 0:
        raise DriverError("cuMemAlloc_v2", code)
    return address.value


def _free(library: Any, addresses: list[int | None]) -> None:
    for address in addresses:
        if address is not None:
            library.cuMemFree_v2(ctypes.c_uint64(address))


# Give kernels output memory that is filled with a poison value and lies between guard areas. The poison shows which
# elements a kernel did not write. The guards show whether it wrote outside its output.
#
# The poison is a NaN with bits that no computation gives. The guard areas are filled with poison, too.

# Data type -> integer type of the same size, and the poison as such an integer: a quiet NaN whose payload no arithmetic
# gives.
_POISON: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float32: (torch.int32, 0x7FC0DEAD),
    torch.bfloat16: (torch.int16, 0x7FDE),
    torch.float16: (torch.int16, 0x7EAD),
}
# Number of guard elements before and after a tensor. With 64 elements, the tensor keeps the 16-byte alignment that a
# kernel may require.
GUARD_ELEMENTS = 64
_ALLOCATING: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.empty_permuted,
        Tensor.new_empty,
        Tensor.new_empty_strided,
    }
)


def bits(tensor: Tensor) -> Tensor:
    """Return the tensor's bits as integers, for comparisons that distinguish different NaNs."""
    return tensor.view(_POISON[tensor.dtype][0])


def poisoned(tensor: Tensor) -> Tensor:
    """Return a mask of the elements that still have the poison value, because nothing wrote them."""
    return bits(tensor) == _POISON[tensor.dtype][1]


class GuardedMemory(TorchFunctionMode):
    """Within its block, fill tensors that torch allocates uninitialized with poison, between two guard areas.

    Poison is a fixed bit pattern. Elements that still have it were never written. Guard areas show writes out of
    bounds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[tuple[Tensor, int]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATING and result.dtype in _POISON and result.is_contiguous():
            return self.poisoned_like(result)
        return result

    def poisoned_like(self, tensor: Tensor) -> Tensor:
        """Return a contiguous tensor of the same shape, type and device, full of poison, between two guard areas."""
        integer, pattern = _POISON[tensor.dtype]
        count = math.prod(tensor.shape)
        size = count + 2 * GUARD_ELEMENTS
        buffer = torch.full((size,), pattern, dtype=integer, device=tensor.device).view(tensor.dtype)
        self._buffers.append((buffer, count))
        return buffer[GUARD_ELEMENTS : GUARD_ELEMENTS + count].view(tensor.shape)

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return a copy of the tensor that lies between two guard areas."""
        return self.poisoned_like(tensor).copy_(tensor)

    def overwritten(self) -> int:
        """Return how many elements of the guard areas were overwritten."""
        ends = (
            end
            for buffer, count in self._buffers
            for end in (buffer[:GUARD_ELEMENTS], buffer[GUARD_ELEMENTS + count :])
        )
        return sum(GUARD_ELEMENTS - int(poisoned(end).sum()) for end in ends)
