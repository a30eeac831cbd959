"""Peaks of a CUDA device's memory: what torch allocates, what is hidden from it, what the harness itself takes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from harness.devices.peak_watch import CudaMemory, PeakWatch
from harness.evidence.arm_records import MemoryPeak

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

MIB = 2**20
SIZE = 256 * MIB


def peak_of(work: Callable[[], object]) -> tuple[MemoryPeak, PeakWatch]:
    peaks: list[MemoryPeak] = []
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()  # what torch holds already is no growth of this stretch
    with PeakWatch(CudaMemory()) as watch, watch.measuring(peaks.append):
        work()
        torch.cuda.synchronize()
    return peaks[0], watch


def test_a_short_lived_tensor_counts_in_the_memory_peak() -> None:
    before = torch.cuda.memory_allocated()
    peak, _ = peak_of(lambda: torch.empty(SIZE, dtype=torch.uint8, device="cuda"))
    assert before + SIZE <= peak.allocated_bytes < before + SIZE + 4 * MIB
    assert peak.reserved_bytes >= peak.allocated_bytes
    assert peak.samples > 0


def test_a_reset_of_peak_statistics_does_not_hide_a_peak() -> None:
    def work() -> None:
        torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        torch.cuda.reset_peak_memory_stats()

    peak, watch = peak_of(work)
    assert peak.allocated_bytes >= SIZE
    evidence = watch.evidence("arm", peak, peak)
    assert (evidence.resets, evidence.lost_peaks) == (1, 0)


def test_memory_allocated_by_the_driver_counts_as_outside_torch() -> None:
    driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()

    def work() -> None:
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(SIZE)) == 0

    try:
        peak, _ = peak_of(work)
    finally:
        driver.cuMemFree_v2(address)
    assert peak.outside_bytes is not None
    assert peak.outside_bytes >= SIZE - 64 * MIB
    assert peak.allocated_bytes < SIZE


def test_memory_that_the_harness_allocates_apart_leaves_the_cuda_cache_unchanged() -> None:
    torch.cuda.empty_cache()
    kept = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    del kept  # in the cache from now on
    reserved = torch.cuda.memory_reserved()
    with CudaMemory().apart():
        torch.empty(2 * SIZE, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == reserved
