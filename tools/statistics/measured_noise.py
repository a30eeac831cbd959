"""The noise in step times that were measured on H200s, from which simulations draw processes at random.

`reports/statistics/measured_noise.json.xz` has the step times of each run, and the digest of the run's manifest. These
runs were later removed from `reports/`. The run that was removed last is still in commit a5e1b400.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from simulated_noise import Shape

from harness.judging.statistics import as_found, undisturbed
from harness.run_directory.bundle import Bundle, read_bundle

Array = NDArray[np.float64]
MODEL = "qwen2-1.5b"  # only workloads of this model are used, because timed claims are about models of this size
# Folders below reports/. Only these runs are used, so that runs that are published later do not change published rates.
RUNS = (
    "2026-11-22-h200-drill",
    "2026-11-22-h200-gate",
    "2026-11-22-h200-gate-again",
    "2026-11-22-h200-throughput",
    "2026-11-22-h200-throughput-512",
    "2026-11-22-h200-throughput-training-step",
    "gates/2026-11-23-h200-gate-one",
)
KEPT = Path("statistics") / "measured_noise.json.xz"
BLOCKS = 8  # number of blocks of an arm that are used; further blocks exist only because some of these were disturbed


class Measurement(TypedDict):
    """One timing. seconds: step times [processes][arms][blocks], candidate first. steps: steps in a block."""

    steps: int
    seconds: list[list[list[float]]]


class TimedRun(TypedDict):
    """The timings of one run directory, and the SHA-256 of its manifest."""

    run: str
    manifest: str
    measurements: list[Measurement]


def resampled(pool: Array, generator: np.random.Generator, shape: Shape, _deviation: float) -> Array:
    """Return processes of a pool [processes, arms, rounds, 2], drawn with replacement. `_deviation` has no effect."""
    drawn = generator.integers(0, len(pool), (shape.experiments, shape.processes))
    return np.moveaxis(pool[drawn], 2, 1)


def pools(reports: Path) -> dict[int, Array]:
    """Return log step times [N, arms, rounds, 2] of the N processes of all runs, by the number of steps in a block.
    Times are divided by the arm's undisturbed step time: the median, over processes, of their lower quartiles."""
    found: dict[int, list[Array]] = {}
    for run in kept(reports):
        for measurement in run["measurements"]:
            flat = np.array(measurement["seconds"])
            reference = np.median(undisturbed(flat), axis=0)
            times = flat.reshape(*flat.shape[:2], -1, 2)
            found.setdefault(measurement["steps"], []).append(np.log(times / reference[None, :, None, None]))
    return {steps: np.concatenate(measurements) for steps, measurements in sorted(found.items())}


def kept(reports: Path) -> list[TimedRun]:
    """Return the runs in `measured_noise.json.xz`, in the order of `RUNS`."""
    runs: list[TimedRun] = json.loads(lzma.decompress((reports / KEPT).read_bytes()))["runs"]
    return runs


def timed(reports: Path, run: str) -> TimedRun:
    """Return the timings of a run directory below `reports`."""
    bundle = read_bundle(reports / run)
    return {"run": run, "manifest": bundle.seal.digest or "", "measurements": _measurements(bundle)}


def deviation(pool: Array) -> float:
    """Return the standard deviation of the processes' log ratios of median step times."""
    medians = as_found(pool.reshape(*pool.shape[:2], -1))
    return float((medians[:, 1] - medians[:, 0]).std(ddof=1))


def _measurements(bundle: Bundle) -> list[Measurement]:
    """Return the timings of `MODEL`: each arm's first `BLOCKS` blocks, from processes that have so many."""
    units = [unit for unit in bundle.header.units if unit.workload.startswith(MODEL)]
    found: list[Measurement] = []
    for unit in units:
        timings = [timing for run in unit.runs if (timing := bundle.evidence(run).timing) is not None]
        if not timings:
            continue
        arms = (timings[0].candidate, timings[0].baseline)
        seconds = [
            [[block.seconds / block.steps for block in timing.blocks if block.arm == arm][:BLOCKS] for arm in arms]
            for timing in timings
        ]
        whole = [process for process in seconds if all(len(arm) == BLOCKS for arm in process)]
        found.append({"steps": timings[0].blocks[0].steps, "seconds": whole})
    return found
