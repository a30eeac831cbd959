"""The prewarm probe and what it fills memory with, on stand-ins; tests/gpu/test_prewarm.py does it on a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import kernel_systems
import pytest

from harness.contract.schema import Arm, Workload
from harness.devices import device_memory
from harness.devices.cuda_driver import Devices, DriverError, Gpu
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution.probes import prewarm
from harness.execution.probes.step_memory import StepMemory
from harness.execution.recorder import Recorder
from harness.system.protocol import CaptureRecord, KernelInventory, NotAvailable

MIB = 2**20
MEMORY = StepMemory(large_bytes=1, small_bytes=2, outside_bytes=3, segments=[])


def make_run(system: str, *, memory_filled: bool = True) -> Run:
    return Run(
        id="p1",
        contract="c",
        probe="prewarm",
        workload_name="w",
        workload=Workload(model="any", batch_size=2, seq_len=8, steps=12),
        arms={"nf4": PlannedArm(arm=Arm(), system=f"kernel_systems:{system}")},
        settings={"target": "device", "handles": ["cublas"], "memory_filled": memory_filled},
        fault="odd_key",
        fault_arms=["nf4"],
    )


class Device:
    """A device whose memory fills to 3 MiB, and a process that measures; `happened` is told in order."""

    kind: type[kernel_systems.Run] = kernel_systems.Run

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.reserved: list[StepMemory] = []
        self.training = kernel_systems.Run()

    def opened(self, fails_at: int | None) -> kernel_systems.Run:
        self.happened.append("open")
        self.training = self.kind(fails_at)
        return self.training

    @contextmanager
    def full_memory(self, memory: StepMemory) -> Iterator[int]:
        self.reserved.append(memory)
        self.happened.append(f"fill after {len(self.training.steps)} steps")
        yield 3 * MIB
        self.happened.append(f"free after {len(self.training.steps)} steps")


class FailedCapture(kernel_systems.Run):
    """A class of its own: a method that comes to another one and goes again is kept by `isinstance`'s memory."""

    def capture_record(self) -> CaptureRecord:
        return CaptureRecord(None, True, False, "the capture failed: out of memory", 0, 0, 0, 2)


class Measuring:
    """In place of the process that measures."""

    def __init__(self, device: Device) -> None:
        self._device = device
        device.happened.append("start the other process")

    def wait_until_ready(self) -> None:
        self._device.happened.append("the other one is open")

    def measure(self) -> StepMemory:
        self._device.happened.append("measure")
        return MEMORY

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._device.happened.append("the other process is over")


class Alone(Recorder):
    """A recorder that says when its run is alone."""

    device: Device

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.device.happened.append("alone")
        yield
        self.device.happened.append("beside others")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(prewarm, "full_memory", device.full_memory)
    monkeypatch.setattr(prewarm, "MemoryProbe", lambda _run, _arm: Measuring(device))
    monkeypatch.setattr(prewarm, "devices", lambda: Devices((Gpu("H200", "GPU-1", "sm_90", 139.8),)))
    monkeypatch.setattr("kernel_systems.Healthy.open", lambda *_args, **_named: device.opened(None))
    monkeypatch.setattr("kernel_systems.Failing.open", lambda *_args, **_named: device.opened(1))
    monkeypatch.setattr(Alone, "device", device, raising=False)
    return device


def records_of(run: Run, directory: Path) -> dict[str, dict[str, Any]]:
    directory.mkdir()
    with Alone(directory) as recorder:
        prewarm.execute(run, recorder)
    lines = (directory / "records.jsonl").read_text().splitlines()
    return {record["record"]: record for record in map(json.loads, lines)}


def test_a_prewarm_run_has_the_device_alone_from_measurement_to_last_step(device: Device, tmp_path: Path) -> None:
    """Another process trains first and ends. Both processes open the arm while other runs use the device."""
    records_of(make_run("Healthy"), tmp_path / "run")
    assert device.happened == [
        "start the other process",
        "open",
        "the other one is open",
        "alone",
        "measure",
        "fill after 0 steps",
        "free after 2 steps",
        "beside others",
        "the other process is over",
    ]


def test_the_kernel_inventory_is_compiled_while_the_machine_is_shared(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = kernel_systems.Run.kernel_inventory

    def compiled(training: kernel_systems.Run) -> KernelInventory:
        device.happened.append("inventory")
        return inventory(training)

    monkeypatch.setattr(kernel_systems.Run, "kernel_inventory", compiled)
    records_of(make_run("Healthy"), tmp_path / "run")
    assert device.happened[-3:] == ["beside others", "inventory", "the other process is over"]


def test_prewarmed_steps_in_full_memory_record_ledger_and_inventory(device: Device, tmp_path: Path) -> None:
    records = records_of(make_run("Healthy"), tmp_path / "run")
    assert device.reserved == [MEMORY]
    assert records["prewarm"] == {
        "record": "prewarm",
        "arm": "nf4",
        "events": [{"key": "planned", "event": "compile", "phase": "prewarm", "seconds": 0.5}],
        "phases": {"prewarm": 0.0, "upload": 1.0, "train": 2.0},
        "handles": {"cublas": 0.7},
        "free_bytes_after_fill": 3 * MIB,
        "steps_after_fill": 2,
        "failure": None,
    }
    assert [one["key"] for one in records["kernels"]["used"]] == ["step 0", "step 1"]
    assert records["kernels"]["device"] == "sm_90"


@pytest.mark.usefixtures("device")
def test_running_out_of_memory_in_a_prewarmed_step_is_recorded(tmp_path: Path) -> None:
    found = records_of(make_run("Failing"), tmp_path / "run")["prewarm"]
    assert (found["steps_after_fill"], found["failure"]) == (1, "OutOfMemoryError: CUBLAS_STATUS_ALLOC_FAILED")


def test_a_failed_capture_after_prewarming_is_recorded(device: Device, tmp_path: Path) -> None:
    device.kind = FailedCapture
    found = records_of(make_run("Healthy"), tmp_path / "run")["prewarm"]
    assert device.reserved == [MEMORY]
    assert (found["steps_after_fill"], found["failure"]) == (2, "the capture failed: out of memory")


def test_a_step_that_fails_in_free_memory_is_an_error(device: Device, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_ALLOC_FAILED"):
        records_of(make_run("Failing", memory_filled=False), tmp_path / "run")
    assert device.happened == ["open"]


def test_device_memory_is_filled_only_if_the_claim_requires_it(device: Device, tmp_path: Path) -> None:
    found = records_of(make_run("Healthy", memory_filled=False), tmp_path / "run")["prewarm"]
    assert device.happened == ["open"]
    assert (found["free_bytes_after_fill"], found["steps_after_fill"]) == (None, 0)


@pytest.mark.usefixtures("device")
def test_a_system_without_kernels_is_not_available(tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match="`kernels`"):
        records_of(make_run("WithoutKernels").model_copy(update={"fault": None}), tmp_path / "run")


class Cache:
    """torch's cache: a tensor goes where it fits into a gap, else the driver gives a segment of its size."""

    def __init__(self, gap: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gap, self.reserved = gap, gap
        self.made: list[int] = []
        monkeypatch.setattr("torch.empty", self.empty)
        monkeypatch.setattr("torch.cuda.memory_reserved", lambda: self.reserved)

    def empty(self, size: int, **_options: object) -> None:
        self.made.append(size)
        if size <= self.gap:
            self.gap -= size
        else:
            self.reserved += size


@pytest.mark.parametrize(
    ("memory", "sizes"),
    [
        (StepMemory(large_bytes=80, small_bytes=0, outside_bytes=0, segments=[20, 30]), [20, 30, 40]),
        (StepMemory(large_bytes=80, small_bytes=MIB + 1, outside_bytes=0, segments=[80]), [80, 10, MIB, MIB]),
        (StepMemory(large_bytes=80, small_bytes=0, outside_bytes=0, segments=[90, 10]), [90, 10]),
    ],
    ids=["the rest of the peak in one block", "small ones apart", "more at the end than the spare part"],
)
def test_prewarm_reserves_segments_of_the_measured_sizes_and_the_rest_of_the_measured_peak(
    memory: StepMemory, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(0, monkeypatch)
    prewarm.reserve(memory)
    assert cache.made == sizes


def test_reserving_memory_does_not_count_cached_gaps_as_step_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(45, monkeypatch)
    prewarm.reserve(StepMemory(large_bytes=80, small_bytes=0, outside_bytes=0, segments=[20, 60]))
    assert (cache.made, cache.reserved) == ([20, 20, 20, 60, 10], 45 + 90)


class Driver:
    """libcuda's allocator for a device with so many bytes."""

    def __init__(self, total: int, fails_with: int = 0) -> None:
        self.total, self.fails_with = total, fails_with
        self.taken: dict[int, int] = {}

    def free(self) -> int:
        return self.total - sum(self.taken.values())

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:  # noqa: N802 - libcuda's name
        if self.fails_with:
            return self.fails_with
        if size.value > self.free():
            return 2
        address._obj.value = 1 + max(self.taken, default=0)
        self.taken[address._obj.value] = size.value
        return 0

    def cuMemFree_v2(self, address: Any) -> int:  # noqa: N802 - libcuda's name
        del self.taken[address.value]
        return 0


@pytest.mark.parametrize("total", [140 * 2**30, 5 * MIB, 4 * MIB, MIB, 7 * MIB + 1])
def test_filling_device_memory_leaves_less_than_four_mebibytes_free(total: int) -> None:
    driver = Driver(total)
    with device_memory.full(library=driver):
        assert driver.free() < 4 * MIB
    assert driver.free() == total


def test_filling_device_memory_leaves_the_requested_bytes_free() -> None:
    driver = Driver(100 * MIB)
    with device_memory.full(but=10 * MIB, library=driver):
        assert 10 * MIB <= driver.free() < 14 * MIB
    assert driver.free() == 100 * MIB


def test_the_memory_that_fills_the_device_is_released_when_a_step_fails() -> None:
    driver = Driver(100 * MIB)
    with pytest.raises(ValueError, match="a step"), device_memory.full(but=MIB, library=driver):
        raise ValueError("a step")
    assert driver.taken == {}


def test_a_driver_error_while_filling_memory_is_raised() -> None:
    with (
        pytest.raises(DriverError, match="cuMemAlloc_v2 gave error 201"),
        device_memory.full(library=Driver(MIB, fails_with=201)),
    ):
        pass
