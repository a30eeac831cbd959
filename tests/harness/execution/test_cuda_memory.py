"""The CUDA device's memory as torch and NVML tell it, without a device: what is patched, and what is put back."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.devices import peak_watch
from harness.devices.peak_watch import CudaMemory, Levels, PeakWatch


@pytest.mark.parametrize("name", peak_watch._RESETS)
def test_a_memory_reset_by_either_name_is_recorded_and_executed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(torch._C, name, done.append, raising=False)
    original = getattr(torch._C, name)

    def around(reset: Any) -> Any:
        done.append("told")
        return reset()

    with CudaMemory.watch_resets(object.__new__(CudaMemory), around):
        getattr(torch._C, name)(0)
    assert done == ["told", 0]
    assert getattr(torch._C, name) is original


@pytest.mark.parametrize("rank", [None, 1])
def test_a_rank_samples_the_memory_of_its_own_device(rank: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that samples memory has the first device as its current device, also in a process of another rank."""
    asked: list[int] = []

    def note(device: int) -> Any:
        asked.append(device)
        return SimpleNamespace(uuid=device)

    def note_and_tell(device: int) -> dict[str, Any]:
        asked.append(device)
        return {}

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", note)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", note_and_tell)
    monkeypatch.setattr(torch.cuda, "get_device_properties", note)
    monkeypatch.setitem(vars(torch._C), "_cuda_resetPeakMemoryStats", note)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([7]))
    monkeypatch.setattr(peak_watch, "REST_S", 0.0)
    memory = CudaMemory(rank)
    memory.reserved()
    memory.peaks()
    memory.reset_peaks()
    assert memory._uuid == f"GPU-{rank or 0}"
    assert asked == [rank or 0] * 4


def test_sampling_memory_does_not_initialize_cuda_before_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is sampled every two milliseconds.

    If sampling initialized CUDA, a system could not configure the allocator any more.
    """

    def current_device() -> int:
        raise AssertionError("torch sets CUDA and its allocator up")

    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    watch = PeakWatch(object.__new__(CudaMemory))
    watch.look()
    assert object.__new__(CudaMemory).peaks() == Levels(0, 0)


class Nvml:
    """Two GPUs, one of which stops telling its memory."""

    NVMLError = RuntimeError

    def __init__(self, used: list[int]) -> None:
        self._used = used

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if handle == 1:
            raise RuntimeError("no permission")
        return SimpleNamespace(used=self._used.pop(0) if len(self._used) > 1 else self._used[0])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[int]:  # noqa: N802
        return [1, 2] if handle == 0 else []


def test_a_gpu_reading_that_nvml_lacks_does_not_hide_readings_of_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", Nvml([7]))
    gpus = peak_watch._Nvml()
    assert (gpus.in_use(), gpus.processes()) == ({"GPU-0": 7}, {"GPU-0": 2, "GPU-1": 0})


def test_device_memory_is_read_once_it_no_longer_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a process that has just ended is released only after a short time."""
    monkeypatch.setitem(__import__("sys").modules, "pynvml", Nvml([900, 500, 100]))
    monkeypatch.setattr(peak_watch, "sleep", lambda _: None)
    monkeypatch.setattr(peak_watch, "REST_S", 0.01)
    assert peak_watch._Nvml().at_rest()[0] == {"GPU-0": 100}
