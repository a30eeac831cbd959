"""The machine as the driver tells it, against what torch sees; telemetry of a busy GPU."""

from __future__ import annotations

import os

import pytest
import torch
from waiting import eventually

from harness.devices.environment import collect, machine
from harness.devices.telemetry import Sampler

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_the_driver_and_torch_see_the_same_devices() -> None:
    found = machine()
    assert (found.cuda, found.cuda_message, found.gpu_unreadable) == (True, "", False)
    assert len(found.gpus) == torch.cuda.device_count()
    properties = torch.cuda.get_device_properties(0)
    assert found.gpus[0].name == properties.name
    assert found.gpus[0].uuid == f"GPU-{properties.uuid}"
    assert found.gpus[0].architecture == f"sm_{properties.major}{properties.minor}"
    assert abs(found.gpu_memory_gib - properties.total_memory / 2**30) < 1.0


def test_the_fingerprint_names_gpu_driver_and_cuda() -> None:
    facts = collect()
    assert facts.gpu.name == torch.cuda.get_device_name(0)
    assert str(facts.gpu.driver).split(".")[0].isdigit()
    assert facts.versions["cuda"] == torch.version.cuda


def test_telemetry_of_a_busy_gpu_has_clock_power_and_temperature() -> None:
    matrix = torch.randn(4096, 4096, device="cuda")
    with Sampler(machine().gpus[0].uuid, {os.getsid(0)}, lambda: "timed") as sampler:

        def busy() -> bool:
            nonlocal matrix
            matrix = torch.nn.functional.normalize(matrix @ matrix)
            torch.cuda.synchronize()
            return len(sampler._samples) >= 25

        eventually(busy, "samples")
    samples = sampler.telemetry().samples
    assert len(samples) >= 3
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    assert clocks
    assert min(clocks) > 100.0
    assert all(sample.power_w is not None and sample.power_w > 10.0 for sample in samples)
    assert all(sample.temperature_c is not None and 0.0 < sample.temperature_c < 120.0 for sample in samples)
