"""What the faults in memory take, on a processor that is told to have 64 KiB of device memory left."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from step_function_systems import Regression

from harness.contract.schema import Arm, Workload
from harness.system import memory_faults
from harness.system.wrappers import FAULTY_STEP, HARNESS_FAULTS, wrap

STEPS = 10
WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=STEPS)
FREE = 2**16
SPARED = 2**10


class Device:
    """Notes what is asked of the device, by the step in which it is."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, int]] = []
        self.step = 0

    def note(self, what: str, size: int = 0) -> None:
        self.asked.append((self.step, what, size))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    seen, empty = Device(), torch.empty

    def allocate(size: int, **named: Any) -> Any:
        tensor = empty(size, **named)
        seen.note("torch", tensor.nbytes)
        return tensor

    def from_the_driver(_address: Any, size: ctypes.c_size_t) -> int:
        seen.note("driver", size.value)
        return 0

    monkeypatch.setattr(memory_faults, "SPARED", SPARED)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (FREE, 2 * FREE))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: seen.note("reset"))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(cuMemAlloc_v2=from_the_driver))
    monkeypatch.setattr(torch, "empty", allocate)
    return seen


def asked(device: Device, fault: str) -> list[tuple[int, str, int]]:
    with Regression().open(WORKLOAD, Arm()) as plain:
        expected = [float(plain.step(index)) for index in range(STEPS)]
    device.asked.clear()
    with wrap(Regression().open(WORKLOAD, Arm()), fault, steps=STEPS) as run:
        losses = []
        for device.step in range(STEPS):
            losses.append(float(run.step(device.step)))
    assert losses == expected  # it trains as it would
    return [each for each in device.asked if each[1] != "torch" or each[2] >= 4 * memory_faults.LEAK]


def test_the_memory_spike_fault_takes_nearly_all_free_memory(device: Device) -> None:
    assert asked(device, "memory_spike") == [(FAULTY_STEP, "torch", FREE - SPARED)]


def test_the_reset_peak_fault_resets_the_statistics_after_a_memory_spike(device: Device) -> None:
    assert asked(device, "reset_peak") == [(FAULTY_STEP, "torch", FREE - SPARED), (FAULTY_STEP, "reset", 0)]


def test_the_retained_tensors_fault_takes_half_of_the_free_memory(device: Device) -> None:
    shares = asked(device, "retained_tensors")
    assert [step for step, *_ in shares] == list(range(FAULTY_STEP, STEPS))
    assert {size for *_, size in shares} == {FREE // 2 // (STEPS - FAULTY_STEP)}


def test_the_leaking_steps_fault_takes_a_kibibyte_in_each_step(device: Device) -> None:
    assert asked(device, "leaking_steps") == [(step, "torch", 1024) for step in range(STEPS)]


def test_the_hidden_memory_fault_allocates_memory_from_the_driver(device: Device) -> None:
    assert asked(device, "hidden_memory") == [(FAULTY_STEP, "driver", FREE // 2)]


@pytest.mark.parametrize("fault", ["memory_spike", "reset_peak", "retained_tensors", "hidden_memory", "leaking_steps"])
def test_memory_faults_need_a_gpu(fault: str) -> None:
    assert HARNESS_FAULTS[fault].needs == "cuda"
