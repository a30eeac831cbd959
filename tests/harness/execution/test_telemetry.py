"""Telemetry, with NVML played by a stand-in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import eventually

from harness.devices import telemetry
from harness.devices.telemetry import Gpu, Sampler
from harness.evidence.run_records import Telemetry

SESSION = os.getsid(0)
FOREIGN = 2**22 + 1  # above the largest process id: outside every session here


class NvmlError(Exception):
    pass


class Nvml:
    """One GPU. A reading that is an exception is raised."""

    NVMLError = NvmlError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        self.clock: Any = 1980
        self.power: Any = 412_500
        self.temperature: Any = 61
        self.reasons: Any = 0
        self.compute: Any = []
        self.graphics: Any = []

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def _answer(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlDeviceGetClockInfo(self, _handle: str, kind: int) -> Any:  # noqa: N802
        return self._answer({1: self.clock}[kind])

    def nvmlDeviceGetPowerUsage(self, _handle: str) -> Any:  # noqa: N802
        return self._answer(self.power)

    def nvmlDeviceGetTemperature(self, _handle: str, kind: int) -> Any:  # noqa: N802
        return self._answer({0: self.temperature}[kind])

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: str) -> Any:  # noqa: N802
        return self._answer(self.reasons)

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> Any:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self._answer(self.compute)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, _handle: str) -> Any:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self._answer(self.graphics)]


def test_telemetry_readings_have_the_expected_units() -> None:
    assert Gpu("GPU-a", {SESSION}, Nvml()).read() == {
        "sm_clock_mhz": 1980,
        "power_w": 412.5,
        "temperature_c": 61,
        "throttle_reasons": [],
        "foreign_processes": 0,
    }


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x4, ["sw_power_cap"]),
        (0x8 | 0x40, ["hw_slowdown", "hw_thermal_slowdown"]),
        (0x20 | 0x80 | 0x10, ["sync_boost", "sw_thermal_slowdown", "hw_power_brake_slowdown"]),
        (0x1, []),  # idle
        (0x2 | 0x100, []),  # clocks set by the user
    ],
)
def test_throttle_reasons_are_recorded_by_name(bits: int, names: list[str]) -> None:
    nvml = Nvml()
    nvml.reasons = bits
    assert Gpu("GPU-a", {SESSION}, nvml).read()["throttle_reasons"] == names


def test_the_clock_of_an_idle_gpu_is_not_recorded() -> None:
    nvml = Nvml()
    nvml.reasons = 0x1
    assert Gpu("GPU-a", {SESSION}, nvml).read()["sm_clock_mhz"] is None


def test_gpu_telemetry_that_the_driver_does_not_report_is_none() -> None:
    nvml = Nvml()
    nvml.clock = nvml.power = nvml.temperature = nvml.reasons = nvml.compute = nvml.graphics = NvmlError()
    assert Gpu("GPU-a", {SESSION}, nvml).read() == {
        "sm_clock_mhz": None,
        "power_w": None,
        "temperature_c": None,
        "throttle_reasons": [],
        "foreign_processes": telemetry.UNKNOWN,
    }


@pytest.mark.parametrize(
    ("before", "during", "foreign"),
    [
        ([], [], 0),
        ([], [os.getpid()], 0),  # the worker's session
        ([FOREIGN], [FOREIGN, os.getpid()], 1),
        ([], [FOREIGN, os.getpid()], 1),
        ([], [FOREIGN], 0),  # in a container: the worker under the host's number
        ([FOREIGN], [FOREIGN], 1),
        ([FOREIGN], [FOREIGN, FOREIGN + 1], 1),
        ([], [FOREIGN, FOREIGN + 1], 1),
    ],
)
def test_gpu_processes_beyond_the_workers_count_as_foreign(before: list[int], during: list[int], foreign: int) -> None:
    nvml = Nvml()
    nvml.compute = before
    gpu = Gpu("GPU-a", {SESSION}, nvml)
    nvml.compute = during
    assert gpu.read()["foreign_processes"] == foreign


def test_graphics_processes_on_the_gpu_count_as_foreign_processes() -> None:
    nvml = Nvml()
    nvml.compute, nvml.graphics = [os.getpid()], [FOREIGN]
    assert Gpu("GPU-a", {SESSION}, nvml).read()["foreign_processes"] == 1


def sampled(monkeypatch: pytest.MonkeyPatch, phases: list[str]) -> Telemetry:
    """Telemetry of a run that enters the phases one after the other, sampled twice in each."""
    monkeypatch.setattr(telemetry, "INTERVAL_S", 0.01)
    asked: list[str] = []

    def phase() -> str:
        asked.append(phases[min(len(asked) // 2, len(phases) - 1)])
        return asked[-1]

    with Sampler(None, {SESSION}, phase) as sampler:
        eventually(lambda: len(asked) >= 2 * len(phases), "each phase is seen")
    return sampler.telemetry()


def test_telemetry_keeps_only_samples_of_the_timed_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sampled(monkeypatch, ["build", "warm up", "observe"])
    timed = sampled(monkeypatch, ["build", "timed", "timed round 2", "observe", "close"])
    assert len(whole.samples) >= 6
    assert len(timed.samples) == 4


def test_an_arm_named_timed_does_not_count_as_the_timed_phase_while_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    phases = ["timed: open", "timed-step: warm-up", "timed: wait to be alone", "timed", "timed: end"]
    assert len(sampled(monkeypatch, phases).samples) == len(sampled(monkeypatch, ["build", "timed", "end"]).samples)


def test_the_timed_phase_is_sampled_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this test advances only while the sampler waits. Four samples fall into the timed phase."""
    monkeypatch.setattr(telemetry, "INTERVAL_S", 0.5)
    monkeypatch.setattr(telemetry, "TIMED_INTERVAL_S", 0.125)
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    sampler = Sampler(None, {SESSION}, lambda: "timed" if 0.6 < now[0] < 1.1 else "other")

    def wait(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 1.5:
            sampler._stop.set()

    monkeypatch.setattr(sampler._stop, "wait", wait)
    sampler._sample_until_stopped()
    assert [(phase, sample.seconds) for phase, sample in sampler._samples] == [
        ("other", 0.0),
        ("other", 0.5),
        *(("timed", second) for second in (0.625, 0.75, 0.875, 1.0)),
        ("other", 1.5),
    ]


def test_the_load_of_the_host_is_recorded_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (6.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert {sample.host_load_per_core for sample in sampled(monkeypatch, ["a"]).samples} == {1.5}


def test_an_unreachable_gpu_is_recorded_as_unknown_and_not_as_idle(tmp_path: Path) -> None:
    with Sampler("GPU-of-another-machine", {SESSION}, lambda: "timed") as sampler:
        eventually(lambda: sampler._samples, "a sample")
    sampler.write(tmp_path / "telemetry.jsonl")
    record = json.loads((tmp_path / "telemetry.jsonl").read_text())
    assert record["samples"][0]["foreign_processes"] == -1
    assert record["samples"][0]["sm_clock_mhz"] is None
