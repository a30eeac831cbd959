"""Plant faults in the use of device memory, and faults in late steps of a long run."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from harness.devices import device_memory
from harness.devices.device import wait_for
from harness.devices.device_memory import empty_cache, free_bytes, reset_peaks
from harness.system.wrappers import LAST_STEP, LATE, FaultyRun

SPARED = 2**31  # bytes of the device's memory that a planted spike leaves free
LEAK = 256  # number of float32 elements that each step keeps: 1 KiB


def spike(loss: Tensor) -> None:
    """Allocate all free memory of the loss's device except SPARED bytes, and free this memory again."""
    empty_cache()
    torch.empty(max(1, free_bytes(loss.device) - SPARED), dtype=torch.uint8, device=loss.device)
    empty_cache()


class MemorySpike(FaultyRun):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index == self._faulty_step:
            spike(loss)
        return loss


class ResetPeak(FaultyRun):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index == self._faulty_step:
            spike(loss)
            reset_peaks()
        return loss


class RetainedTensors(FaultyRun):
    """Keeps one more tensor after each step, from the faulty step on. All kept tensors together take half of the free
    memory."""

    _share = 0

    def __init__(self, inner: Any, steps: int) -> None:
        super().__init__(inner, steps)
        self._kept: list[Tensor] = []

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index == self._faulty_step:
            self._share = free_bytes(loss.device) // 2 // (self._steps - index)
        if index >= self._faulty_step:
            self._kept.append(torch.empty(max(1, self._share), dtype=torch.uint8, device=loss.device))
        return loss


class LeakingSteps(FaultyRun):
    def __init__(self, inner: Any, steps: int) -> None:
        super().__init__(inner, steps)
        self._kept: list[Tensor] = []

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        self._kept.append(torch.empty(LEAK, device=loss.device))
        return loss


class HiddenMemory(FaultyRun):
    """Allocates half of the free memory directly from the driver, outside torch's allocator, and keeps this memory."""

    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        if index == self._faulty_step:
            device_memory.take(free_bytes(loss.device) // 2)
        return loss


class LateFault(FaultyRun):
    """Base class of faults in one step near the end of the run."""

    @property
    def _late_step(self) -> int:
        return int(LATE * self._steps)


class LateStaleBatch(LateFault):
    def step(self, index: int) -> Tensor:
        return self._inner.step(index - 1 if index == self._late_step else index)


class LateNan(LateFault):
    def step(self, index: int) -> Tensor:
        loss = self._inner.step(index)
        return loss * float("nan") if index == self._late_step else loss


class LateDroppedUpdate(LateFault):
    def step(self, index: int) -> Tensor:
        if index != self._late_step:
            return self._inner.step(index)
        before = [parameter.clone() for parameter in self._trained()]
        loss = self._inner.step(index)
        torch._foreach_copy_(self._trained(), before)
        return loss


class SlowingSteps(FaultyRun):
    def step(self, index: int) -> Tensor:
        started = time.perf_counter()
        loss = self._inner.step(index)
        wait_for(loss)
        time.sleep((LAST_STEP - 1) * index / self._steps * (time.perf_counter() - started))
        return loss
