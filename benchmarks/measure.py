"""Time one training step in the same way for every arm, and describe the machine."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.devices.environment import git_commit

GIB = 1024**3
PACKAGES = (
    "torch", "triton", "transformers", "peft", "bitsandbytes", "accelerate", "unsloth", "unsloth_zoo", "trl",
    "liger_kernel", "axolotl", "cut_cross_entropy",
)  # fmt: skip
# A timing depends on the sources in these folders. `environment` records their digest, which shows uncommitted changes.
SOURCES = ("benchmarks", "reference_impl")
REPOSITORY = Path(__file__).resolve().parents[1]

# Largest and smallest number of single steps of an arm in one round. A block has the same number of steps as the round
# has single steps. Arms with longer steps get fewer steps in a round.
MOST_STEPS_A_ROUND = 10
FEWEST_STEPS_A_ROUND = 5
ROUND_MS = 1200.0


@dataclass(frozen=True)
class StepTimes:
    """Wall times of single steps, each with a device sync at its end, and of a block of steps with one sync."""

    milliseconds: tuple[float, ...]
    block_ms: float  # mean milliseconds of a step inside the block

    @property
    def median_ms(self) -> float:
        return float(np.median(self.milliseconds))

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.milliseconds, percent))


def synchronize(device: torch.device) -> None:
    """Wait for the device. On a CPU do nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(step: Callable[[int], object], first: int, count: int, device: torch.device) -> StepTimes:
    """Time ``count`` steps one by one, starting with step ``first``, and the next ``count`` steps as one block."""
    milliseconds: list[float] = []
    for index in range(first, first + count):
        synchronize(device)
        began = time.perf_counter()
        step(index)
        synchronize(device)
        milliseconds.append((time.perf_counter() - began) * 1e3)
    began = time.perf_counter()
    for index in range(first + count, first + 2 * count):
        step(index)
    synchronize(device)
    return StepTimes(tuple(milliseconds), (time.perf_counter() - began) * 1e3 / count)


def steps_of_a_round(step_ms: float) -> int:
    """Return the number of single steps in a round, which is also the number of steps in the round's block.

    Single steps and block together should take `ROUND_MS`. The number is between `FEWEST_STEPS_A_ROUND` and
    `MOST_STEPS_A_ROUND`.
    """
    return max(FEWEST_STEPS_A_ROUND, min(MOST_STEPS_A_ROUND, int(ROUND_MS / (2 * step_ms))))


def clock_mhz(device: torch.device) -> int | None:
    """Return the current clock of the multiprocessors in MHz, or None without CUDA or NVML."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.clock_rate(device)
    except (ModuleNotFoundError, RuntimeError):  # pynvml is not installed, or the driver does not report the clock
        return None


def reset_peak_memory(device: torch.device) -> None:
    """Reset torch's memory peaks, so that `peak_memory_gib` covers only the steps after this call."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gib(device: torch.device) -> tuple[float | None, float | None]:
    """Return the peaks of allocated and reserved memory since the last reset, in GiB; (None, None) on a CPU."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.max_memory_allocated(device) / GIB, torch.cuda.max_memory_reserved(device) / GIB


def environment() -> dict[str, Any]:
    """Return the commit, the device with its properties, and the versions of the packages that arms use (None if
    missing)."""
    cuda = torch.cuda.is_available()
    return {
        "commit": git_commit(),
        "sources": _sources(),
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "device_uuid": str(torch.cuda.get_device_properties(0).uuid) if cuda else None,
        "capability": list(torch.cuda.get_device_capability()) if cuda else None,
        "device_memory_gib": torch.cuda.get_device_properties(0).total_memory / GIB if cuda else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _sources() -> str:
    """Return the SHA-256 of the sources in `SOURCES`. Unlike the commit, it changes with uncommitted changes."""
    found = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            found.update(f"{path.relative_to(REPOSITORY)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
