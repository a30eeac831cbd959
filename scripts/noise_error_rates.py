"""Measure the error rates of equality within the baseline's own noise by simulation; write them to a folder.

Every experiment is five runs of each arm, decided by `harness.judging.own_noise`, which is the judge's own code. A run
has 20 losses and some sketched tensors, of four sums each.

    python scripts/noise_error_rates.py [--experiments 300] [--seed 0] [--output .]
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.judging.own_noise import Features, separation
from harness.kinds.trajectory.model import RUNS
from harness.numbers import dump_json

LOSSES, SUMS = 20, 4
TENSORS = (10, 100, 1000)
MEASURED_AT = 100  # tensors, for the power
SHIFTS, SCATTERS = (1.0, 2.0, 5.0, 10.0, 100.0), (2.0, 5.0, 10.0, 100.0)
EPSILON = 2.0**-23
MOST = 1 / 126  # of equal pairs: the rule's own bound

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]


def normal(generator: np.random.Generator, columns: int) -> Floats:
    return generator.normal(size=(2 * RUNS, columns))


def heavy_tailed(generator: np.random.Generator, columns: int) -> Floats:
    """Student's t with two degrees of freedom, which has no variance."""
    return np.asarray(generator.standard_t(2, (2 * RUNS, columns)), dtype=np.float64)


def discrete(generator: np.random.Generator, columns: int) -> Floats:
    """Most runs are equal in bits, and one in ten is off by a rounding of a number of size 1."""
    return np.where(generator.random((2 * RUNS, columns)) < 0.1, EPSILON, 0.0)


def two_valued(generator: np.random.Generator, columns: int) -> Floats:
    """Each number has one of two values that lie far apart, as where one of two algorithms is chosen."""
    return (generator.random((2 * RUNS, columns)) < 0.5) + 1e-6 * generator.normal(size=(2 * RUNS, columns))


def chaotic(generator: np.random.Generator, columns: int) -> Floats:
    """Three deviations at the start grow from 1e-7 to 1 over the columns, beside a rounding of each number."""
    growth = np.logspace(-7, 0, columns)
    common = generator.normal(size=(2 * RUNS, 3)) @ generator.normal(size=(3, columns))
    return growth * np.tanh(common) + EPSILON * generator.normal(size=(2 * RUNS, columns))


NOISES: dict[str, Noise] = {
    "normal": normal,
    "heavy-tailed": heavy_tailed,
    "discrete": discrete,
    "two-valued": two_valued,
    "chaotic": chaotic,
}


@dataclass(frozen=True)
class Point:
    """How often a candidate was accused that differs in one way from the baseline; shares of the experiments."""

    noise: str
    tensors: int
    candidate: str
    experiments: int
    accused: float


def wanted(point: Point) -> tuple[str, bool] | None:
    """What a point was wanted to show, and whether it does; three standard errors are left to the simulation."""
    if point.candidate == "equal":
        slack = 3 * (MOST * (1 - MOST) / point.experiments) ** 0.5
        return "accused at most 1 in 126", point.accused <= MOST + slack
    if point.noise == "normal" and point.candidate in ("one tensor off by 10", "one loss off by 100"):
        return "accused at least 95 %", point.accused >= 0.95
    return None


def is_accused(losses: Floats, tensors: Floats) -> bool:
    """Decide as the judge does, about numbers of size 1."""
    groups = [
        Features([str(index) for index in range(each.shape[1] // columns)], each, columns, floor)
        for each, columns in ((losses, 1), (tensors, SUMS))
        for floor in [np.full(each.shape[1] // columns, 2 * EPSILON)]
    ]
    return separation(groups).beyond > 1


def unequal(losses: Floats, tensors: Floats, candidate: str) -> tuple[Floats, Floats]:
    """Return the numbers with those of the first half changed as the candidate's name says, in their own spreads."""
    losses, tensors = losses.copy(), tensors.copy()
    what, _, size = candidate.rpartition(" ")
    if what == "one loss off by":
        losses[:RUNS, LOSSES // 2] += float(size) * losses[:, LOSSES // 2].std()
    elif what == "one tensor off by":
        middle = slice(tensors.shape[1] // 2 // SUMS * SUMS, tensors.shape[1] // 2 // SUMS * SUMS + SUMS)
        tensors[:RUNS, middle] += float(size) * tensors[:, middle].std(axis=0)
    elif what == "noisier by":
        for each in (losses, tensors):
            centre = each[:RUNS].mean(axis=0)
            each[:RUNS] = centre + float(size) * (each[:RUNS] - centre)
    return losses, tensors


def simulate(noise: str, tensors: int, candidates: Sequence[str], experiments: int, seed: int) -> list[Point]:
    """A point for each candidate, by the same experiments."""
    generator = np.random.default_rng([seed, zlib.crc32(noise.encode()), tensors])
    accused = dict.fromkeys(candidates, 0)
    for _ in range(experiments):
        of_losses = NOISES[noise](generator, LOSSES)
        of_tensors = NOISES[noise](generator, tensors * SUMS)
        for candidate in candidates:
            accused[candidate] += is_accused(*unequal(of_losses, of_tensors, candidate))
    return [Point(noise, tensors, each, experiments, accused[each] / experiments) for each in candidates]


def points(experiments: int, seed: int) -> list[Point]:
    """Every point of the report."""
    power = [f"one loss off by {size:g}" for size in SHIFTS] + [f"one tensor off by {size:g}" for size in SHIFTS]
    power += [f"noisier by {size:g}" for size in SCATTERS]
    found = []
    for noise in NOISES:
        for tensors in TENSORS:
            candidates = ["equal", *(power if tensors == MEASURED_AT else ())]
            # the power needs no more than a standard error of 3 %
            found += simulate(noise, tensors, candidates[:1], experiments, seed)
            found += simulate(noise, tensors, candidates[1:], experiments // 4, seed) if len(candidates) > 1 else []
    return found


def as_markdown(found: Sequence[Point], seed: int) -> str:
    """The tables, with what they mean."""
    bars = [bar for point in found if (bar := wanted(point)) is not None]
    lines = [
        "# Error rates of equality within the baseline's own noise",
        "",
        f"Simulated, seed {seed}: five runs of each arm, each with {LOSSES} losses and some sketched tensors. Equal",
        "arms may be accused once in 126, whatever the noise is. A shift of one loss or of one tensor is given in",
        "spreads of one run over both arms before the shift.",
        "",
        f"Wanted of {len(bars)} rows; missed by {sum(not met for _, met in bars)}.",
        "",
        "| noise | tensors | candidate | experiments | accused | wanted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = []
    for point in found:
        bar = wanted(point)
        text = "" if bar is None else f"{bar[0]}: {'met' if bar[1] else 'MISSED'}"
        shown = [point.noise, str(point.tensors), point.candidate, str(point.experiments), f"{point.accused:.2%}", text]
        rows.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, *rows]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--experiments", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path())
    arguments = parser.parse_args()
    found = points(arguments.experiments, arguments.seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for point in found:
        text, met = wanted(point) or (None, None)
        rows.append(asdict(point) | {"wanted": text, "met": met})
    whole = {"seed": arguments.seed, "points": rows}
    (arguments.output / "noise_error_rates.json").write_text(dump_json(whole) + "\n")
    (arguments.output / "noise_error_rates.md").write_text(as_markdown(found, arguments.seed))


if __name__ == "__main__":
    main()
