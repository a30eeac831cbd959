"""The noise of processes that were timed on H200s, drawn again with replacement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from simulated_noise import Noise, Shape

from harness.judge.statistics import as_found, undisturbed
from harness.run_directory.bundle import Bundle, read_bundle

Array = NDArray[np.float64]
MODEL = "qwen2-1.5b"  # workloads of a size that claims are about
# Named, so that a run which is published later changes no published rate.
RUNS = (
    "2026-11-22-h200-drill",
    "2026-11-22-h200-gate",
    "2026-11-22-h200-gate-again",
    "2026-11-22-h200-throughput",
    "2026-11-22-h200-throughput-512",
    "2026-11-22-h200-throughput-training-step",
)


def resampled(pool: Array) -> Noise:
    """Processes of the pool [N, arms, rounds, 2], each as it was measured; the deviation is theirs."""

    def noise(generator: np.random.Generator, shape: Shape, _deviation: float) -> Array:
        drawn = generator.integers(0, len(pool), (shape.experiments, shape.processes))
        return np.moveaxis(pool[drawn], 2, 1)

    return noise


def pools(reports: Path) -> dict[int, Array]:
    """By the steps of a block: log step times [N, arms, rounds, 2] of every process of the runs.

    They are relative to the undisturbed step of their measurement: its arm's lower quartile, the median over its
    processes. So a true ratio is one of undisturbed steps.
    """
    found: dict[int, list[Array]] = {}
    for run in RUNS:
        for steps, times in _measurements(read_bundle(reports / run)):
            flat = times.reshape(*times.shape[:2], -1)
            reference = np.median(undisturbed(flat), axis=0)
            found.setdefault(steps, []).append(np.log(times / reference[None, :, None, None]))
    return {steps: np.concatenate(measurements) for steps, measurements in sorted(found.items())}


def deviation(pool: Array) -> float:
    """Standard deviation of the processes' log ratios of medians."""
    medians = as_found(pool.reshape(*pool.shape[:2], -1))
    return float((medians[:, 1] - medians[:, 0]).std(ddof=1))


def _measurements(bundle: Bundle) -> list[tuple[int, Array]]:
    """Steps of a block and step times [P, arms, rounds, 2] of each timing of the model; all have as many rounds."""
    units = [unit for unit in bundle.header.units if unit.workload.startswith(MODEL)]
    found = []
    for unit in units:
        timings = [timing for run in unit.runs if (timing := bundle.evidence(run).timing) is not None]
        if not timings:
            continue
        arms = (timings[0].candidate, timings[0].baseline)
        times = [
            [[block.seconds / block.steps for block in timing.blocks if block.arm == arm] for arm in arms]
            for timing in timings
        ]
        blocks = np.array(times)
        found.append((timings[0].blocks[0].steps, blocks.reshape(len(timings), 2, -1, 2)))
    return found
