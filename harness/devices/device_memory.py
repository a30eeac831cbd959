"""Measure the device memory of torch's allocator, fill memory, and detect writes outside of kernels' outputs."""

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

# The functions below read how much memory torch's caching allocator holds on the CUDA device, or make it release
# memory.


class Growth(NamedTuple):
    """The device memory that a piece of work took, in bytes.

    large, small: growth of the reserved memory up to its peak, in torch's pools for large and small blocks.
    reserved: growth of the memory that torch has reserved, up to its size after the work.
    taken: decrease of the device's free memory.
    segments: sizes of the driver's allocations that the work added to the pool for large blocks and did not free.
    """

    large: int
    small: int
    reserved: int
    taken: int
    segments: list[int]


def empty_cache() -> None:
    """Make torch's allocator return its unused memory to the driver. Without a device, do nothing."""
    torch.cuda.empty_cache()


def reset_peaks() -> None:
    """Set the peaks that torch's allocator has recorded to the current values."""
    torch.cuda.reset_peak_memory_stats()


def free_bytes(device: torch.device | None = None) -> int:
    """Return the free bytes on a device, as the driver reports them.

    Default: the current device. Raises an error without CUDA.
    """
    return torch.cuda.mem_get_info(device)[0]


def reserved_bytes() -> int:
    """Return the bytes on the device that torch's allocator has reserved, including bytes that no tensor uses. Without
    a device, return 0."""
    return torch.cuda.memory_reserved()


def memory_sample(step: int) -> MemorySample | None:
    """Return torch's current counts of CUDA memory, or None without CUDA. step: the step that the sample belongs to.

    The counts come from one call of torch, which does not make the host wait for the device.
    """
    if not has_cuda():
        return None
    counted = torch.cuda.memory_stats_as_nested_dict()
    allocated, reserved = (
        counted[name]["all"]["current"] if name in counted else 0 for name in ("allocated_bytes", "reserved_bytes")
    )
    return MemorySample(step=step, allocated_bytes=allocated, reserved_bytes=reserved)


def growth(work: Callable[[], object]) -> Growth:
    """Execute `work` and return the device memory that it took. `work` must wait for the device before it returns. No
    other process may use the device meanwhile, because the free memory is measured for the whole device."""
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
    """Return the sizes in bytes of all segments in torch's pools for large blocks, by address. Pools of CUDA graphs are
    included."""
    snapshot = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return {one["address"]: one["total_size"] for one in snapshot if one["segment_type"] == "large"}


# The functions below call libcuda instead of `cudaMalloc`. CUDA's runtime keeps the error of a failed `cudaMalloc`, and
# the next check in torch would raise this error.

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY, a CUresult of cuda.h
_FIRST_SIZE = 2**36  # size of the first allocation, in bytes
# Fewer than this number of bytes remain free. With 3 MB free on an H200, a Triton kernel can be loaded, but cuBLAS
# cannot start.
LEFT_FREE = 2**22


def take(size: int) -> None:
    """Allocate `size` bytes from the driver and never free them. Raises DriverError if the device has not enough free
    memory."""
    if _allocate(ctypes.CDLL("libcuda.so.1"), size) is None:
        raise DriverError("cuMemAlloc_v2", _OUT_OF_MEMORY)


@contextmanager
def full(*, but: int = 0, library: Any = None) -> Iterator[None]:
    """Fill the memory of the current CUDA context's device during the `with` block, and free it afterwards.

    but: bytes that must stay free. In addition, fewer than LEFT_FREE bytes stay free. library: libcuda, or an object
    that replaces it in tests. Raises DriverError for every failure except a lack of memory.
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


# The code below gives kernels output memory that is filled with a fixed bit pattern (the poison), with guard areas
# before and after it. If an element of the output still has the poison, no kernel wrote it. If an element of a guard
# area no longer has the poison, a kernel wrote outside of its output.

# Data type -> integer type of the same size, and the poison as such an integer. The poison is a quiet NaN with a
# payload that no arithmetic produces.
_POISON: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float32: (torch.int32, 0x7FC0DEAD),
    torch.bfloat16: (torch.int16, 0x7FDE),
    torch.float16: (torch.int16, 0x7EAD),
}
# Number of guard elements before and after a tensor. With 64, the tensor stays aligned to 16 bytes, as kernels may
# require.
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
    """Return the bits of the elements as integers. Unlike NaNs, integers can be compared for equality."""
    return tensor.view(_POISON[tensor.dtype][0])


def poisoned(tensor: Tensor) -> Tensor:
    """Return a boolean tensor: True for each element of `tensor` that no kernel wrote, because the element still has
    the poison (a fixed NaN)."""
    return bits(tensor) == _POISON[tensor.dtype][1]


class GuardedMemory(TorchFunctionMode):
    """Within its `with` block, fills each uninitialized tensor that torch allocates with poison, and puts guard areas
    around the tensor.

    The poison is a fixed bit pattern. An element of a tensor that still has the poison was never written. A changed
    element of a guard area shows a write outside of the tensor.
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
        """Return a contiguous tensor of the same shape, type and device, with guard areas around it. The tensor and the
        guard areas are filled with the poison, a fixed bit pattern."""
        integer, pattern = _POISON[tensor.dtype]
        count = math.prod(tensor.shape)
        size = count + 2 * GUARD_ELEMENTS
        buffer = torch.full((size,), pattern, dtype=integer, device=tensor.device).view(tensor.dtype)
        self._buffers.append((buffer, count))
        return buffer[GUARD_ELEMENTS : GUARD_ELEMENTS + count].view(tensor.shape)

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return a copy of the tensor with guard areas before and after it in memory."""
        return self.poisoned_like(tensor).copy_(tensor)

    def overwritten(self) -> int:
        """Return the number of guard elements that were overwritten, in all guard areas."""
        ends = (
            end
            for buffer, count in self._buffers
            for end in (buffer[:GUARD_ELEMENTS], buffer[GUARD_ELEMENTS + count :])
        )
        return sum(GUARD_ELEMENTS - int(poisoned(end).sum()) for end in ends)
