"""Peaks by the harness's own account, over a device whose memory a test makes up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from claims_in_process import contract_of, executed
from step_function_systems import Regression
from torch import Tensor
from waiting import eventually

from harness.contract.schema import Arm
from harness.devices import peak_watch
from harness.devices.peak_watch import Levels, PeakWatch
from harness.evidence.arm_records import MemoryPeak
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution.probes import memory
from harness.execution.recorder import Recorder
from harness.system.protocol import NotAvailable

MIB = 2**20
OTHERS = 500 * MIB  # of the driver, before the process used the device
CONTEXT = 300 * MIB


class Device:
    """A GPU whose allocator keeps what it took; `hidden` is what the driver gave behind its back."""

    def __init__(self) -> None:
        self.allocated = self.taken = self.hidden = 0
        self.peak = Levels(0, 0)
        self.readable = True
        self.number = 1
        self.in_context = True
        self.around: Callable[[Callable[[], object]], object] | None = None

    def hold(self, size: int) -> None:
        """So many bytes from now on."""
        self.allocated = size
        self.taken = max(self.taken, size)
        self.peak = Levels(max(self.peak.allocated, size), max(self.peak.reserved, self.taken))

    def reset_by_user(self) -> None:
        """As `torch.cuda.reset_peak_memory_stats`."""
        assert self.around is not None
        self.around(self.reset_peaks)

    def peaks(self) -> Levels:
        return self.peak

    def reserved(self) -> int:
        return self.taken

    def reset_peaks(self) -> None:
        self.peak = Levels(self.allocated, self.taken)

    @contextmanager
    def watch_resets(self, around: Callable[[Callable[[], object]], object]) -> Iterator[None]:
        self.around = around
        yield
        self.around = None

    def apart(self) -> Any:
        return nullcontext()

    def used(self) -> bool:
        return self.in_context

    def before(self) -> tuple[int | None, int | None]:
        return (OTHERS, 0) if self.readable else (None, None)

    def in_use(self) -> int | None:
        return OTHERS + CONTEXT + self.taken + self.hidden if self.readable else None

    def processes(self) -> int | None:
        return self.number if self.readable else None

    def names(self) -> tuple[str, str]:
        return "native", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Nothing is sampled but where the test looks."""
    monkeypatch.setattr(peak_watch, "INTERVAL_S", 3600.0)
    return Device()


def measured(device: Device, *events: Callable[[], None]) -> tuple[MemoryPeak, Any]:
    """The peak of a stretch in which these things happen, and the evidence of a run of nothing else."""
    peaks: list[MemoryPeak] = []
    with PeakWatch(device) as watch:
        with watch.measuring(peaks.append):
            for event in events:
                event()
                watch.look()
        return peaks[0], watch.evidence("arm", peaks[0], peaks[0])


def test_a_memory_spike_between_two_samples_is_part_of_the_peak(device: Device) -> None:
    def spike() -> None:
        device.hold(700 * MIB)
        device.hold(100 * MIB)

    peak, _ = measured(device, lambda: device.hold(200 * MIB), spike)
    assert (peak.allocated_bytes, peak.reserved_bytes) == (700 * MIB, 700 * MIB)


def test_peak_memory_counts_memory_held_before_the_measurement_but_no_earlier_peaks(device: Device) -> None:
    device.hold(900 * MIB)
    device.hold(50 * MIB)
    peak, _ = measured(device, lambda: device.hold(60 * MIB))
    assert (peak.allocated_bytes, peak.reserved_bytes) == (60 * MIB, 900 * MIB)


def test_a_reset_of_peak_statistics_is_counted_and_hides_no_peak(device: Device) -> None:
    def spike_and_reset() -> None:
        device.hold(700 * MIB)
        device.hold(100 * MIB)
        device.reset_by_user()

    peak, evidence = measured(device, spike_and_reset)
    assert (peak.allocated_bytes, evidence.resets, evidence.lost_peaks) == (700 * MIB, 1, 0)


def test_falling_memory_statistics_without_an_observed_reset_are_recorded(device: Device) -> None:
    def reset_behind_our_back() -> None:
        device.hold(100 * MIB)
        device.reset_peaks()

    _, evidence = measured(device, lambda: device.hold(700 * MIB), reset_behind_our_back)
    assert (evidence.resets, evidence.lost_peaks) == (0, 1)


def test_the_harness_resets_peaks_between_phases_without_losing_any(device: Device) -> None:
    peaks: list[MemoryPeak] = []
    with PeakWatch(device) as watch:
        for size in (700, 100):
            with watch.measuring(peaks.append):
                device.hold(size * MIB)
        evidence = watch.evidence("arm", *peaks)
    assert [peak.allocated_bytes for peak in peaks] == [700 * MIB, 700 * MIB]  # it still held that when the next began
    assert (evidence.resets, evidence.lost_peaks) == (0, 0)


def test_memory_that_does_not_come_from_torchs_allocator_counts_as_outside_memory(device: Device) -> None:
    def hide() -> None:
        device.hidden = 2000 * MIB

    peak, _ = measured(device, lambda: device.hold(100 * MIB), hide)
    assert peak.outside_bytes == CONTEXT + 2000 * MIB
    assert peak.device_bytes == CONTEXT + 2100 * MIB
    assert peak.allocated_bytes == 100 * MIB


def test_briefly_held_memory_outside_the_allocator_is_sampled(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_watch, "INTERVAL_S", 0.0)
    peaks: list[MemoryPeak] = []
    with PeakWatch(device) as watch, watch.measuring(peaks.append):
        device.hidden = 2000 * MIB
        first = watch._samples
        eventually(lambda: watch._samples >= first + 2, "two samples")
        device.hidden = 0
    assert peaks[0].outside_bytes == CONTEXT + 2000 * MIB


def test_an_unreadable_device_gives_no_memory_samples(device: Device) -> None:
    device.readable = False
    peak, evidence = measured(device, lambda: device.hold(100 * MIB))
    assert (peak.device_bytes, peak.outside_bytes, peak.samples) == (None, None, 0)
    assert evidence.foreign_processes is None


def test_a_gpu_is_not_read_before_the_process_uses_it(device: Device) -> None:
    """The driver cannot describe a process that has no CUDA context yet."""
    device.in_context = False

    def begin() -> None:
        device.in_context = True

    peak, evidence = measured(device, lambda: None, begin)
    assert (peak.samples, peak.outside_bytes, evidence.foreign_processes) == (2, CONTEXT, 0)


@pytest.mark.parametrize(("processes", "foreign"), [(0, 0), (1, 0), (3, 2)])
def test_foreign_gpu_processes_are_counted_without_this_process(device: Device, processes: int, foreign: int) -> None:
    device.number = processes  # in a container the driver may list none
    _, evidence = measured(device, lambda: None)
    assert evidence.foreign_processes == foreign


class Heavy(Regression):
    """Its opening takes 400 MiB, each step 10 MiB more than the last one, up to 150."""

    device: Device

    def open(self, *given: Any, **named: Any) -> Any:
        self.device.hold(400 * MIB)
        self.device.hold(100 * MIB)
        return super().open(*given, **named)

    def before_update(self, loss: Tensor, model: Any) -> None:
        self.device.hold(min(self.device.allocated + 10 * MIB, 150 * MIB))


def peaks_run(system: str) -> Run:
    text = {"id": "C", "title": "t", "why": "w", "if_fails": "f", "judged_on": ["w"]}
    claim: dict[str, Any] = {**text, "kind": "repeatability"}
    claim |= {"candidate": "plain", "equality": "bitwise", "max_abs_difference": 0.1, "guards": {"steps": 8}}
    return Run(
        id="peaks",
        contract="c",
        probe="peak_memory",
        workload_name="w",
        workload=contract_of(system, claim, steps=8).workloads["w"],
        arms={"plain": PlannedArm(arm=Arm(), system=system)},
    )


def test_the_peak_memory_probe_without_cuda_is_not_available(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "has_cuda", lambda: False)
    with Recorder(tmp_path) as recorder, pytest.raises(NotAvailable, match="needs CUDA"):
        memory.execute_peak_memory(peaks_run("step_function_systems:Regression"), recorder)


def test_the_peak_memory_probe_separates_opening_from_steps(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int | None] = []

    def on_device(number: int | None) -> Device:
        numbers.append(number)
        return device

    monkeypatch.setattr(memory, "has_cuda", lambda: True)
    monkeypatch.setattr(memory, "CudaMemory", on_device)
    monkeypatch.setattr(Heavy, "device", device, raising=False)
    monkeypatch.setattr("step_function_systems.Heavy", Heavy, raising=False)
    run = peaks_run("step_function_systems:Heavy")
    (execution,) = executed(run, tmp_path / "run").arms["plain"]
    seen = execution.peak_memory
    assert seen is not None
    assert (seen.opening.allocated_bytes, seen.steps.allocated_bytes) == (400 * MIB, 150 * MIB)
    assert (seen.steps.reserved_bytes, seen.allocator_settings) == (
        400 * MIB, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )  # fmt: skip
    assert (len(execution.series.loss), execution.end is not None and execution.end.steps_called) == (8, 8)
    assert numbers == [None]  # of a process that is no rank
