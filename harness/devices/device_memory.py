"""Take a CUDA device's memory from the driver until it is full, next to what torch holds.

It calls libcuda itself: a failed `cudaMalloc` would leave its error for torch's next check to find.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.devices.cuda_driver import DriverError

_OUT_OF_MEMORY = 2  # CUresult of cuda.h
_FIRST_SIZE = 2**36  # bytes
# Bytes: less than this stays free. Measured on an H200 with 3 MB left: a Triton kernel loads, cuBLAS cannot start.
LEFT_FREE = 2**22


def take(size: int) -> None:
    """Take `size` bytes from the driver, and never give them back. Raises DriverError if it has no such block."""
    if _allocate(ctypes.CDLL("libcuda.so.1"), size) is None:
        raise DriverError("cuMemAlloc_v2", _OUT_OF_MEMORY)


@contextmanager
def full(*, but: int = 0, library: Any = None) -> Iterator[None]:
    """Fill the current context's device within the block, and leave `but` bytes and less than LEFT_FREE more free.

    `library` is libcuda or a stand-in. Raises DriverError for any failure except memory running out.
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
